"""What emitted programs do besides following a plan, so that compilers hold no more than it says.

A trick is an entry here: what it does, and the programs that need it, by their names in
`tests/planner/test_programs.py`. `python -m benchmarks.tricks` switches each off and prints what it is worth. What is
worth nothing has no place here.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Trick:
    """One of them.

    Attributes:
      name: what it is called.
      does: what it does, and what compilers do without it.
      needed_by: programs that take more work or bytes without it, on the CPU with JAX 0.12 or on an H100.
    """

    name: str
    does: str
    needed_by: tuple[str, ...]

    @property
    def is_on(self) -> bool:
        """Whether programs are emitted with it."""
        return self.name not in _off.get()


_off: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("tricks that are off", default=frozenset())

DRAWS = Trick(
    "draws",
    "A barrier before each node of the forward pass that makes much of next to nothing, as random numbers are made of "
    "a key: compilers draw those of all layers at the start.",
    ("random numbers that are drawn where they are used",),
)
APART = Trick(
    "apart",
    "A barrier behind each cheap value and small product of the forward pass that is read behind a later product, as "
    "the sum along a stack of layers is: compilers compute it where it is read, and hold what it is made of so long.",
    ("layers with norms",),
)
OFTEN = Trick(
    "often",
    "Barriers before the runs where much is alive, not only where something is computed again: between two of them "
    "compilers order the runs as they like.",
    ("differences of all pairs", "patches of images"),
)
ROOM = Trick(
    "room",
    "A barrier where more was made since the last one than the plan has room for, and around what has to take the "
    "place of something: GPUs' compilers make one kernel of a softmax, which takes no place.",
    ("the logits of many words",),
)
MOVED = Trick(
    "moved",
    "Barriers tie the inputs that are copied with their dimensions in another order, or repeated: compilers make "
    "these copies at the start and for both passes.",
    ("patches of images", "a weight that a reduction repeats", "experts"),
)
ANCHORS = Trick(
    "anchors",
    "Barriers tie the smallest input of what is computed from inputs alone, again or in the forward pass: nothing else "
    "keeps it behind them, and compilers make the products of the inputs of all steps at the start.",
    ("a loop that reads the data of a batch from where it is", "a network that reads an input at each step"),
)
FORMS = Trick(
    "forms",
    "A gradient that is read through a transpose only is turned right away: compilers hold both for a while.",
    ("parts of a gradient that are added as they come", "a loop that reads the data of a batch from where it is"),
)
FILLS = Trick(
    "fills",
    "Arrays of equal or counted numbers are made when they are written into: they depend on nothing, and compilers "
    "make all of them at the start.",
    ("numbers that sorting puts in order", "a graph network"),
)
# The plan for Gemma that takes 1.073 of the work compiles to 3.42 GB on an H100 without it, and to 2.88 GB with it.
MATRICES = Trick(
    "matrices",
    "On GPUs and TPUs, barriers tie products as the matrices that compilers compute, with views behind: a view before "
    "a barrier is in no fusion, and nothing works in place on what it is of.",
    ("gated layers",),
)
POOLS = Trick(
    "pools",
    "The gradient of max pooling by elementwise operations: compilers scatter, with arrays of integers as large as "
    "what is pooled, and make those of all layers at the start.",
    ("convolutions with pooling",),
)
# The LSTM of `benchmarks/model_programs.py` fits into half of its bytes on an H100 with it, and does not without.
PICKS = Trick(
    "picks",
    "The gradient of `take_along_axis` by comparisons: compilers scatter into an array as large as that which is read.",
    ("the logits of many words",),
)

TRICKS = (DRAWS, APART, OFTEN, ROOM, MOVED, ANCHORS, FORMS, FILLS, MATRICES, POOLS, PICKS)


@contextlib.contextmanager
def without(*tricks: Trick) -> Iterator[None]:
    """Emits programs without some tricks."""
    token = _off.set(_off.get() | {trick.name for trick in tricks})
    try:
        yield
    finally:
        _off.reset(token)


def switched_off() -> list[str]:
    """The names of the tricks that are off, in order: plans of other settings are others."""
    return sorted(_off.get())
