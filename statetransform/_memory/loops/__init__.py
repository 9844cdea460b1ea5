"""Loops that remember little. Knows no `State`: plans as data, and programs of constant size that carry them out.

What is stored and what is recomputed is decided in three places. For a known length, `plan.split` says it as data,
and `stack.Blocks.leg` computes the same on the device. For a length that is not known, `unknown_length.placer`
decides while the loop runs. For a number of bytes, `budget.choose` picks a plan among the `choice.candidates`, with
units of carries or residuals (`mixed`). Loops in a function under a budget are opened by `plans/versions.py`, and
then follow its plan. `sweep` and `reverse` carry a plan out; `far` keeps carries in host memory or files. `loops` has
the functions that the transforms call, and `others` applies them to loops in anybody's program.
"""
