"""Python objects: which of them count by value, what they hold, and how their attributes are seen. Knows no state."""
