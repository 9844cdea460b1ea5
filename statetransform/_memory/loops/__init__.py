"""Loops that remember little. Knows no `State`: plans as data, and programs of constant size that carry them out.

`plan` decides which steps are stored and which are recomputed, for a known length; `unknown_length` does so while the
loop runs, and `budget` chooses the plan that a number of bytes buys. `sweep` carries a plan out. `loops` has the
functions that the transforms call, and `others` applies them to loops in anybody's program.
"""
