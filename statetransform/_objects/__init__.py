"""Python objects: whose code they belong to, which of them count by value, and how their attributes are seen."""
