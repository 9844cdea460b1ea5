"""The one idea: a function is traced once; the states that it reads become inputs, those that it writes outputs."""
