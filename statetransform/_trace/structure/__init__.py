"""What a trace depends on: the attributes, names and items that it used, and whether they are still the same."""
