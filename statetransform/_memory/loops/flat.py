"""A step, traced once, as a function of lists of arrays."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..._base.errors import StateTransformError
from ..._base.functions import all_that
from ..._jax import Tracer, eval_jaxpr, is_differentiable, slice_type, typeof, weak, without_constvars
from ..context import Context, known_lanes
from ..programs.references import made_in
from ..programs.walk import moved_by_steps, moving_steps, walk
from ..targets import Target, target_of
from .arrays import Leaves
from .budget import MemoryBudget
from .choice import FEW, SLOT, WORKING, Choice, Sizes
from .lanes import lanes_first, noticed
from .measured import row_bytes, working_bytes
from .reverse import Tape
from .stack import Sharing
from .step import Selected, Step


def as_function(closed: Any, n_carry: int) -> tuple[Callable[[Leaves, Leaves, Leaves], Any], Any, Leaves]:
    """A closed jaxpr as a function of constants, carry and inputs, the open jaxpr, and its constants.

    The function may be given more constants: it takes its own, which come first.
    """
    jaxpr, consts = without_constvars(closed)

    def call(consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        n_consts = len(jaxpr.invars) - len(carry) - len(x)
        out = eval_jaxpr(jaxpr, (), *consts[:n_consts], *carry, *x)
        out = [strong(y) for y in out]
        return out[:n_carry], out[n_carry:]

    return call, jaxpr, [jnp.asarray(c) if isinstance(c, np.ndarray | np.generic) else c for c in consts]


def moved(jaxpr: Any, selected: Selected) -> Selected:
    """A selection with the leaves of the carry that get a tangent from others in the course of the loop.

    For example, of `c -> (c[0], c[0] * c[1])` with a tangent of the first leaf, the second leaf gets one after a step.

    Args:
      jaxpr: that of a step.
      selected: what has a tangent before the first step.
    """
    carry = selected.carry
    n_consts = len(jaxpr.invars) - len(carry) - len(selected.xs)
    outputs = moving_steps(jaxpr, selected.consts[:n_consts], carry, selected.xs)
    return selected._replace(carry=tuple(outputs[: len(carry)]))


def reached(jaxpr: Any, selected: Selected, carry: Sequence[bool], ys: Sequence[bool]) -> Selected:
    """What of that which is selected gets a cotangent from some leaves of the last carry and some stacked outputs."""
    n_consts = len(jaxpr.invars) - len(carry) - len(selected.xs)
    flags = moved_by_steps(jaxpr, n_consts, carry, ys)
    rest = [False] * (len(selected.consts) - n_consts)
    parts = [*flags[:n_consts], *rest], flags[n_consts : n_consts + len(carry)], flags[n_consts + len(carry) :]
    return Selected(*[tuple(map(operator.and_, *pair)) for pair in zip(parts, selected, strict=True)])


class Flat:
    """A step as a function of lists of arrays, with all that it closes over as its first argument.

    Attributes:
      call: one step, `call(consts, carry, x) -> (carry, y)`. It holds no array: derivative rules outlive the trace.
      moves, needed: which leaves of the carry get a tangent, and which ones the derivative depends on.
      reached: what gets a cotangent.
      init: the leaves of the initial carry, none of them weakly typed.
    """

    def __init__(self, fun: Callable[[Any, Any], tuple[Any, Any]], init: Any, x: Any) -> None:
        leaves, self._tree = jax.tree.flatten(init)
        self.init = [strong(leaf) for leaf in leaves]
        self._typed = init, x
        traced: Any = jax.make_jaxpr(fun, return_shape=True)(init, x)
        closed, (carry_type, y_type) = traced
        self.reference = made_in(closed)
        n_carry = jax.tree.structure(carry_type).num_leaves
        self.call, self._jaxpr, self.consts = as_function(closed, n_carry)
        self.moves = functools.partial(moved, self._jaxpr)
        self.reached = functools.partial(reached, self._jaxpr)
        self._y_tree = jax.tree.structure(y_type)
        self.avals, self.y_avals = tuple(map(typeof, self.init)), tuple(closed.out_avals[n_carry:])
        inputs = list(map(typeof, self.consts)), list(self.avals), list(map(typeof, jax.tree.leaves(x)))
        step = Step(self.call, self.y_avals, False, 0)
        own = lambda selected: selected._replace(consts=selected.consts[: len(inputs[0])])
        self.needed = functools.cache(lambda selected: Tape(step, own(selected), *inputs).needed)
        self._is_weak = [aval.weak_type for aval in closed.out_avals]

    def test(self, fun: Callable[[Any], Any]) -> tuple[Callable[[Leaves, Leaves], Any], Leaves]:
        """A condition as a function of constants and carry, and the constants: those of the step and its own."""
        traced: Any = jax.make_jaxpr(fun, return_shape=True)(self._typed[0])
        closed, out = traced
        if jax.tree.structure(out) != jax.tree.structure(0) or (out.shape, out.dtype) != ((), bool):
            lax.while_loop(fun, lambda carry: carry, self._typed[0])  # JAX says what is wrong
        n, (call, _, consts) = len(self.consts), as_function(closed, 0)
        return lambda consts, carry: call(consts[n:], carry, [])[1][0], [*self.consts, *consts]

    def inverse(
        self, where: str, fun: Callable[[Any, Any], Any]
    ) -> tuple[Callable[[Leaves, Leaves, Leaves], Leaves], Leaves]:
        """The step backwards as a function of lists of arrays, and the constants: those of the step and its own.

        What both close over is one constant, which has one cotangent.
        """
        traced: Any = jax.make_jaxpr(fun, return_shape=True)(*self._typed)
        closed, before = traced
        types = lambda leaves: [(typeof(x).shape, typeof(x).dtype) for x in leaves]
        if jax.tree.structure(before) != self._tree or types(closed.out_avals) != types(self.init):
            expected = self._tree.unflatten(self.avals)
            raise TypeError(
                f"{where}: the inverse must return a carry of the type {expected}, but it returned {before}"
            )
        call, _, consts = as_function(closed, len(self.init))
        places = {id(const): i for i, const in enumerate(self.consts)}
        own = {id(const): const for const in consts if id(const) not in places}
        places.update({key: len(self.consts) + i for i, key in enumerate(own)})
        order = [places[id(const)] for const in consts]
        return lambda consts, carry, x: call([consts[i] for i in order], carry, x)[0], [*self.consts, *own.values()]

    def planned(
        self,
        budget: MemoryBudget,
        where: str,
        n: int | None,
        xs: Any,
        is_still: Callable[[Any], bool] | None,
        shared_by: tuple[int, int],
        context: Context,
    ) -> tuple[Choice, Any]:
        """What a budget chooses, and the inputs of the loop.

        The budget counts the lanes of `vmap` that are known now. So the inputs are returned, and the initial carry and
        the constants replaced, as identities of themselves that warn when a `vmap` around adds lanes later.

        Args:
          budget: the budget.
          where: the loop, for messages.
          n: the number of steps; None if it is not known.
          xs: the inputs.
          is_still, shared_by, context: as for `loops.scan`.
        """
        leaves = [*self.consts, *self.init, *jax.tree.leaves(xs)]
        lanes = known_lanes(leaves)
        context.depend()
        places = list(map(context.place_of, leaves))
        target = target_of(budget.target, *leaves, *places)
        sizes = self.sizes(xs, target, places, is_still)._replace(slot=SLOT if n is None else 0)
        choice = budget.choose(where, n, sizes, lanes=math.prod(lanes), shared_by=shared_by)
        if is_still is None:  # the budget of a function counts lanes by itself
            seen = noticed(len(lanes), functools.partial(budget.notice, where, choice))
            marked = jax.custom_jvp(lanes_first)  # what is not differentiated stores nothing
            marked.defjvp(lambda primals, dots: (seen(primals[0]), dots[0]), symbolic_zeros=True)
            self.consts, self.init, xs = marked((self.consts, self.init, xs))
        return choice, xs

    def sizes(
        self, xs: Any, target: Target, places: Sequence[Any], is_still: Callable[[Any], bool] | None = None
    ) -> Sizes:
        """The bytes of the loop on one device, if it is differentiated in all that can be and is not still.

        What the step closes over is not differentiated if it is no tracer. `places` are the shardings of constants,
        carry and inputs.
        """
        can = lambda leaf: is_differentiable(leaf) and not (is_still and is_still(leaf))
        inputs = jax.tree.leaves(xs)
        types = list(map(typeof, self.consts)), list(self.avals), [slice_type(x) for x in inputs]
        consts = [isinstance(leaf, Tracer) and can(leaf) for leaf in self.consts]
        selected, tape = self._taped([consts, [*map(can, self.init)], [*map(can, inputs)]], types)
        n = len(self.consts), len(self.consts) + len(self.init)
        places = [*places[: n[1]], *[None] * len(inputs)]
        carry = row_bytes(target, self.avals, places[n[0] : n[1]])
        share = carry / max(row_bytes(target, self.avals), 1)  # residuals are divided over devices as the carry is
        residual = math.ceil(share * row_bytes(target, tape.avals))
        own = Sharing.of(self.avals, tape.avals).own(tape.avals)
        unit = carry + math.ceil(share * row_bytes(target, own))
        whole = Step(self.call, self.y_avals, False, 0, needed=self.needed)
        least = working_bytes(target, whole, str(self._jaxpr), selected, types, places)
        few = FEW * (1 + sum(site.primitive in ("scan", "while") for site in walk(self._jaxpr)))  # of each loop
        needed = 2 * carry + residual if least is None else max(least - few - WORKING * carry, 0)
        if is_still is not None:  # within a function's budget, whose plan does not fuse the step with what is around
            needed += residual
        return Sizes(carry, residual, needed, unit)

    def _taped(self, flags: list[list[bool]], types: tuple[Leaves, Leaves, Leaves]) -> tuple[Selected, Tape]:
        """The step differentiated in all leaves of constants, carry and inputs that can be, by their `flags`.

        A derivative rule in the step may refuse some of them, with which the loop is never differentiated then.
        """
        step = Step(self.call, self.y_avals, False, 0)
        chosen = [(i, j) for i, part in enumerate(flags) for j, flag in enumerate(part) if flag]
        found: list[tuple[Selected, Tape]] = []

        def is_taped(chosen: list[tuple[int, int]]) -> bool:
            some = set(chosen)
            marked = [tuple((i, j) in some for j in range(len(part))) for i, part in enumerate(flags)]
            try:
                selected = self.moves(Selected(*marked))
                found.append((selected, Tape(step, selected, *types)))
            except StateTransformError:
                return False
            return True

        if not is_taped(chosen):
            is_taped(all_that(is_taped, chosen))
        return found[-1]

    def unflatten(self, carry: Leaves, ys: Leaves) -> tuple[Any, Any]:
        """The carry and the stacked outputs in their structures, and weakly typed where they were for the step."""
        leaves = [weak(leaf) if is_weak else leaf for leaf, is_weak in zip((*carry, *ys), self._is_weak, strict=True)]
        return self._tree.unflatten(leaves[: len(carry)]), self._y_tree.unflatten(leaves[len(carry) :])


def strong(x: Any) -> Any:
    """Without a weak type: the sweeps write carries into arrays, which have none."""
    x = x if isinstance(x, jax.Array) else jnp.asarray(x)
    return lax.convert_element_type(x, x.dtype) if x.aval.weak_type else x
