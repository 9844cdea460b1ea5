"""Carries that are kept far away: in host memory, or in files."""
