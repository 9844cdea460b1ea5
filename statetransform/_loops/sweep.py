"""The forward and the backward sweep of a loop, as programs whose size does not depend on the number of steps.

A sweep goes from stored carry to stored carry (`stack`). The steps are taken in blocks of a fixed size, the first one
being shorter. How a block is reversed is the business of `Reverse`: `ByVjp` runs one step again and transposes it,
`tape.ByTape` records the residuals of all steps of the block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jaxcompat import zeros
from .._jaxpr.step_counts import counted
from . import plan
from .arrays import Index, Leaves, empty, merge, pick, put, select, take, zeros_like
from .chunks import Watch, fori_loop
from .lanes import is_left_out, longest
from .stack import Blocks, Climb, Stack, splitter

Cotangents = tuple[Leaves, Leaves, Leaves]  # of constants, of the carry, of the inputs


def all_leaves(selected: Selected) -> tuple[bool, ...]:
    """Marks every leaf of the carry."""
    return (True,) * len(selected.carry)


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One step of a loop as a function of lists of arrays, `fun(consts, carry, x) -> (carry, y)`.

    Attributes:
      fun: the step.
      y_avals: the abstract values of its outputs.
      is_reversed: whether the loop goes through its inputs and outputs backwards.
      k: how many carries may be stored besides the initial one.
      watch: what is told on the way.
      length: the number of steps of the loop; None if it is not known in advance.
      avals: the abstract values of the leaves of the carry.
      needed: which of them the derivative of this and of later steps depends on, for what is differentiated. Only they
        are stored, and computed again: none for a loop that is linear in what is differentiated.
    """

    fun: Callable[[Leaves, Leaves, Leaves], tuple[Leaves, Leaves]]
    y_avals: tuple[Any, ...]
    is_reversed: bool
    k: int
    watch: Watch | None = None
    length: int | None = None
    avals: tuple[Any, ...] = ()
    needed: Callable[[Selected], tuple[bool, ...]] = all_leaves

    def run(self, i: Index, consts: Leaves, carry: Leaves, xs: Leaves) -> tuple[Leaves, Leaves]:
        """The `i`-th step."""
        return self.fun(consts, carry, take(xs, self.place(i)))

    def place(self, i: Index) -> Index:
        """Where the inputs and outputs of the `i`-th step are."""
        return self.length - 1 - i if self.is_reversed and self.length is not None else i

    def whole(self, needed: Sequence[bool], some: Leaves) -> Leaves:
        """A carry with zeros for the leaves that are not needed."""
        return merge([zeros(aval) for aval in self.avals], needed, some)

    def writing(self, consts: Leaves, xs: Leaves) -> Callable[[Index, Any], Any]:
        """A step from carry and stacked outputs to these."""

        def advance(i: Index, moving: Any) -> Any:
            carry, ys = moving
            carry, y = self.run(i, consts, carry, xs)
            return carry, put(ys, self.place(i), y)

        return advance


class Saved(NamedTuple):
    """What the backward sweep starts from.

    Attributes:
      n: the number of steps of this lane; None if it is known in advance.
      stack: the stored carries.
      recorded: the residuals of the last block, `[size, ...]` each; none for `ByVjp`.
    """

    n: Any
    stack: Stack
    recorded: Leaves


class Selected(NamedTuple):
    """Which constants, leaves of the carry and inputs have tangents, as lists of truth values.

    A leaf of the carry has one if its initial value has, or if it gets one from another in the course of the loop.
    """

    consts: tuple[bool, ...]
    carry: tuple[bool, ...]
    xs: tuple[bool, ...]


class Reverse(Protocol):
    """How a block of steps is reversed, `first` being its first step, and `behind` the first one behind it."""

    @property
    def avals(self) -> tuple[Any, ...]:
        """The abstract values of what is recorded in each step."""
        ...

    def record(self, first: Index, carry: Leaves, ys: Leaves, recorded: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        """Runs the last block in the forward sweep; gives the last carry, all outputs, and what was recorded."""
        ...

    def again(self, first: Index, behind: Index, carry: Leaves, recorded: Leaves) -> Leaves:
        """Records the steps of a block from the carry before it, in the place of those recorded before."""
        ...

    def given(self, n: Index | None, ct_ys: Leaves) -> Any:
        """What is the same for all blocks: the number of steps of this lane, cotangents of the outputs, and so on."""
        ...

    def reverse(
        self, given: Any, first: Index, behind: Index, carry: Leaves, recorded: Leaves, cts: Cotangents
    ) -> Cotangents:
        """The cotangents before the block out of those behind it."""
        ...


class Reversing(Protocol):
    """Makes a `Reverse` for one sweep, in which `carry` is an example."""

    @property
    def size(self) -> int:
        """The number of steps in a block."""
        ...

    def __call__(self, step: Step, selected: Selected, consts: Leaves, xs: Leaves, carry: Leaves) -> Reverse: ...


class ByVjp:
    """Blocks of one step, which is run again and transposed at once."""

    size: ClassVar[int] = 1
    avals: tuple[Any, ...] = ()

    def __init__(self, step: Step, selected: Selected, consts: Leaves, xs: Leaves, carry: Leaves) -> None:
        self._step, self._selected, self._consts, self._xs = step, selected, consts, xs

    def record(self, first: Index, carry: Leaves, ys: Leaves, recorded: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        step = self._step
        # A loop of one step: its result is held once, and not fused with and computed again for what reads it.
        with counted(1, is_recomputation=True):
            carry, ys = lax.fori_loop(first, first + 1, step.writing(self._consts, self._xs), (carry, ys))
        if step.watch is not None:
            jax.debug.callback(step.watch.forward, step.length)
        return carry, ys, recorded

    def again(self, first: Index, behind: Index, carry: Leaves, recorded: Leaves) -> Leaves:
        del first, behind, carry
        return recorded

    def given(self, n: Index | None, ct_ys: Leaves) -> Any:
        return n, ct_ys

    def reverse(
        self, given: Any, first: Index, behind: Index, carry: Leaves, recorded: Leaves, cts: Cotangents
    ) -> Cotangents:
        del behind, recorded
        (n, ct_ys), (ct_consts, ct, ct_xs) = given, cts
        more, new, ct_x = self._pull(first, carry, ct, ct_ys)
        if self._step.length is None:
            left_out = is_left_out(first >= n)
            more = select(left_out, [jnp.zeros_like(x) for x in more], more)
            new = select(left_out, ct, new)
        total = [total + x for total, x in zip(ct_consts, more, strict=True)]
        return total, new, put(ct_xs, self._step.place(first), ct_x)

    def _pull(self, i: Index, carry: Leaves, ct: Leaves, ct_ys: Leaves) -> Cotangents:
        step, selected, consts = self._step, self._selected, self._consts
        seen = [ct is not None for ct in ct_ys]
        place = step.place(i)
        x = take(self._xs, place)

        def of_selected(some_consts: Leaves, moving: Leaves, some_x: Leaves) -> tuple[Leaves, Leaves]:
            out, y = step.fun(
                merge(consts, selected.consts, some_consts),
                merge(carry, selected.carry, moving),
                merge(x, selected.xs, some_x),
            )
            return pick(out, selected.carry), pick(y, seen)

        arguments = pick(consts, selected.consts), pick(carry, selected.carry), pick(x, selected.xs)
        _, pull = jax.vjp(of_selected, *arguments)
        return pull((ct, take(pick(ct_ys, seen), place)))


def plain(step: Step, consts: Leaves, init: Leaves, xs: Leaves) -> tuple[Leaves, Leaves]:
    """Runs all steps, storing nothing, under the eyes of a watch."""
    n = step.length
    assert n is not None
    return fori_loop(0, n, step.writing(consts, xs), (init, empty(n, step.y_avals)), step.watch)


def forward(
    step: Step, reversing: Reversing, selected: Selected, consts: Leaves, init: Leaves, xs: Leaves
) -> tuple[Leaves, Leaves, Saved]:
    """Runs all steps of a loop of known length, storing carries before the last block, and recording that.

    Returns:
      The last carry, the stacked outputs, and what the backward sweep starts from.
    """
    n = step.length
    assert n is not None
    if not any(step.needed(selected)):
        return *plain(step, consts, init, xs), Saved(None, Stack.of([], 0), [])
    return climb_last(step, reversing, selected, consts, init, xs, empty(n, step.y_avals), Blocks(n, reversing.size))


def climb_last(
    step: Step,
    reversing: Reversing,
    selected: Selected,
    consts: Leaves,
    carry: Leaves,
    xs: Leaves,
    ys: Leaves,
    blocks: Blocks,
) -> tuple[Leaves, Leaves, Saved]:
    """`forward` for the last blocks of a loop, from the carry before them and with the outputs so far."""
    reverse, needed = reversing(step, selected, consts, xs, carry), step.needed(selected)
    climb = Climb(step.k, splitter(step.k, blocks.count), blocks.position, needed)
    stack, last = Stack.of(pick(carry, needed), step.k), blocks.count - 1
    advance = step.writing(consts, xs)
    stack, (carry, ys) = climb(advance, last, stack, (carry, ys), step.watch, steps=blocks.n - blocks.size)
    first = blocks.position(stack.at[stack.top])
    carry, ys, recorded = reverse.record(first, carry, ys, empty(blocks.size, reverse.avals))
    return carry, ys, Saved(None, stack, recorded)


def backward(
    step: Step,
    reversing: Reversing,
    selected: Selected,
    consts: Leaves,
    xs: Leaves,
    saved: Saved,
    ct_carry: Leaves,
    ct_ys: Leaves,
) -> Leaves:
    """Reverses all steps, storing carries again in the slots that become free.

    Args:
      step: the step.
      reversing: how blocks of it are reversed.
      selected: whose cotangents to compute.
      consts, xs: as for `forward`.
      saved: what `forward` saved.
      ct_carry: cotangents of the selected leaves of the last carry.
      ct_ys: cotangents of the stacked outputs, None for zero and for integers.

    Returns:
      The cotangents of the selected constants, initial values and inputs.
    """
    n, needed = step.length, step.needed(selected)
    reversing = reversing if any(needed) else ByVjp
    blocks = Blocks(longest(saved.n) if n is None else n, reversing.size)
    known = None if n is None else blocks.count
    again = None if known is None else blocks.size * (plan.Schedule(known, step.k).evaluations - 2 * known)
    example = step.whole(needed, take(saved.stack.slots, jnp.int32(0)))
    reverse = reversing(step, selected, consts, xs, example)
    # A single block is reversed in one go: a watch around it would only make copies.
    watch = None if reversing.size > 1 and known == 1 else step.watch
    state = saved.stack, saved.recorded, no_cotangents(selected, consts, xs, ct_carry)
    given = reverse.given(saved.n, ct_ys)
    with counted(known):
        _, _, cts = unwind(step, reverse, given, needed, consts, xs, saved.n, blocks, state, known, again, watch)
    return flattened(cts)


def no_cotangents(selected: Selected, consts: Leaves, xs: Leaves, ct_carry: Leaves) -> Cotangents:
    """What a backward sweep starts with."""
    nothing = lambda leaves, mask: [zeros_like(x) for x in pick(leaves, mask)]
    return nothing(consts, selected.consts), ct_carry, nothing(xs, selected.xs)


def flattened(cts: Cotangents) -> Leaves:
    """What a backward sweep gives: cotangents of constants, initial values and inputs."""
    ct_consts, ct, ct_xs = cts
    return [*ct_consts, *ct, *ct_xs]


def unwind(
    step: Step,
    reverse: Reverse,
    given: Any,
    needed: Sequence[bool],
    consts: Leaves,
    xs: Leaves,
    n: Index | None,
    blocks: Blocks,
    state: tuple[Stack, Leaves, Cotangents],
    known: int | None,
    again: int | None,
    watch: Watch | None = None,
) -> tuple[Stack, Leaves, Cotangents]:
    """Reverses some blocks.

    Args:
      step: the step.
      reverse, given: how blocks of it are reversed.
      needed: which leaves of the carry are stored.
      consts, xs: as for `forward`.
      n: the number of steps of this lane; None if it is known in advance.
      blocks: which steps.
      state: the stored carries, the residuals of the last block, and the cotangents behind it.
      known: how many blocks there are in all; None if it is not known in advance.
      again: how many steps are advanced again in all, if that is known.
      watch: what is told on the way.
    """
    climb = Climb(step.k, splitter(step.k, known), blocks.position, (True,) * sum(needed))

    def advance(i: Index, moving: Any) -> Any:
        carry = pick(step.run(i, consts, step.whole(needed, moving[0]), xs)[0], needed)
        return (carry if n is None else select(is_left_out(i >= n), moving[0], carry),)

    def one(j: Index, state: Any) -> Any:
        stack, recorded, cts = state
        block = blocks.count - 1 - j
        if any(needed):
            stack, _ = climb(advance, block, stack, (stack.read()[0],), steps=again, runs=known or 1)
        # Out of its slot again, the carry can be fused with what reads it.
        carry = step.whole(needed, stack.read()[0])
        first, behind = blocks.position(block), blocks.position(block + 1)
        # The forward sweep has recorded the last block.
        recorded = reverse.again(first, jnp.where(j == 0, first, behind), carry, recorded)
        cts = reverse.reverse(given, first, behind, carry, recorded, cts)
        return stack.pop(), recorded, cts

    done, tell = (lambda j: blocks.n - blocks.position(blocks.count - j)), (lambda watch: watch.backward)
    return fori_loop(0, blocks.count, one, state, watch, done, tell)


def nested(step: Step, consts: Leaves, init: Leaves, xs: Leaves, n: int) -> tuple[Leaves, Leaves]:
    """The loop as nested checkpointed scans: any derivative of any order, in memory of the square root of `n`.

    For the derivatives of the sweeps themselves, which cannot be transposed.
    """
    inner = max(int(np.sqrt(n)), 1)
    outer = n // inner
    order = (lambda x: x[::-1]) if step.is_reversed else (lambda x: x)
    xs = [order(x) for x in xs]

    @jax.checkpoint
    def one(carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        return step.fun(consts, carry, x)

    @jax.checkpoint
    def block(carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        return lax.scan(one, carry, x, length=inner)

    head = [x[: outer * inner].reshape(outer, inner, *x.shape[1:]) for x in xs]
    carry, ys = lax.scan(block, init, head, length=outer)
    ys = [y.reshape(outer * inner, *y.shape[2:]) for y in ys]
    carry, rest = lax.scan(one, carry, [x[outer * inner :] for x in xs], length=n - outer * inner)
    return carry, [order(jnp.concatenate([y, z])) for y, z in zip(ys, rest, strict=True)]
