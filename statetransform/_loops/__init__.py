"""Loops that remember little. Knows no `State`: plans as data, and programs of constant size that carry them out."""
