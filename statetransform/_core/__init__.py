"""The one idea: traced values live in frames, and states become inputs when they are first read."""
