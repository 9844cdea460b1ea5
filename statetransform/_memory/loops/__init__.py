"""Loops that remember little. Knows no `State`: plans as data, and programs of constant size that carry them out.

What is stored and what is recomputed is decided here:

* known length: `plan.split`, as data; `stack.Blocks.leg` computes the same on the device, and `stack.Units.leg` where a
  unit of memory holds a carry or the residuals of a step (`mixed`). `plan.Periods` says what goes far away.
* length that is not known: `unknown_length.placer`, while the loop runs.
* a number of bytes: `MemoryBudget.choose` in `budget`, among `Sizes.candidates` (`choice`).
* in a function under a budget: scans are opened by `plans/opened.py`, and `plans` decides; `while` loops get half of
  the bytes first, by `others.with_reverse_mode`.
* nothing is planned for "step", which is JAX's own checkpoint around each step (`loops.scan`), nor for steps that are
  undone (`reversible`).
* derivatives of a backward sweep: `sweep.nested`.

`sweep` and `reverse` carry a plan out; `far` keeps carries in host memory or files. `loops` has the functions that the
transforms call, `options` what `checkpoint=` may be, and `others` applies them to loops in anybody's program.
"""
