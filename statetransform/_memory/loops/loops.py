"""`scan` and `while_loop` with few stored carries, for functions of pytrees.

The step is traced once and becomes a function of lists of arrays that holds no array: `Flat`. What `checkpoint=` says
becomes a number of carries and of steps to a block; the sweeps over these are the parts of one differentiable
`CheckpointedLoop`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..._jax import Tracer, eval_jaxpr, is_differentiable, slice_type, typeof, weak, without_constvars
from ..programs.references import made_in, refuse_references
from ..programs.sizes import nbytes
from ..programs.walk import moving, walk
from . import plan, sweep, unknown_length
from .arrays import Leaves
from .budget import MemoryBudget
from .choice import Choice, Sizes
from .lanes import known_lanes, lanes_first, noticed
from .options import stored_carries
from .progress import ProgressBar
from .progress import while_loop as watched_while
from .reverse import Tape
from .stack import Sharing
from .step import Saved, Selected, Step, all_leaves
from .tangent import CheckpointedLoop


def scan(
    fun: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    where: str = "scan",
    checkpoint: int | str | MemoryBudget | None,
    block: int = 1,
    watch: ProgressBar | None = None,
    is_still: Callable[[Any], bool] | None = None,
    sharing: tuple[int, int] = (1, 1),
    **options: Any,
) -> tuple[Any, Any]:
    """:func:`jax.lax.scan` that stores at most `k` carries for the backward pass.

    Args:
      where: the loop, for messages.
      checkpoint: the number of stored carries besides the initial one, a name that `stored_carries` knows, or a budget;
        "step" for all carries, None for all residuals.
      block: of how many steps to store the residuals; 0 for units that hold a carry or the residuals of a step.
      is_still: whether an array is known to have no tangent, for what a budget of a function has to count.
      sharing: how many loops share a budget's room on the device, and how many that far away.
      unroll, **options: for the undifferentiated loop.
    """
    n, room = next((x.shape[0] for x in jax.tree.leaves(xs)), length), None
    options = {"reverse": reverse, "unroll": unroll, **options}
    whole = lambda: lax.scan(fun, init, xs, length, **options)
    if not n or (checkpoint is None and watch is None):
        return whole()  # nothing to store
    if checkpoint == "step" and watch is None:
        return lax.scan(jax.checkpoint(fun), init, xs, length, **options)
    if checkpoint is None:  # as other loops, to be watched like them
        k, block = 0, n
    else:
        k = 0 if isinstance(checkpoint, MemoryBudget) else stored_carries(where, checkpoint, n)
    if any(typeof(x).sharding.spec[0] is not None for x in jax.tree.leaves(xs)):
        return whole()  # JAX's own error: the axis that a loop steps along is not sharded
    flat = Flat(fun, init, jax.tree.map(slice_type, xs))
    if isinstance(checkpoint, MemoryBudget):
        choice, xs = flat.planned(checkpoint, where, n, xs, is_still, sharing)
        k, block, room = choice.carries, choice.block, checkpoint.room(where, choice)
        if choice.is_plain and watch is None:
            body = lambda carry, x: flat.call(flat.consts, carry, x)
            return flat.unflatten(*lax.scan(body, flat.init, jax.tree.leaves(xs), n, **options))
    refuse_references(where, flat.reference, _OWN_RULE)
    needed = all_leaves if room else flat.needed
    k = min(k, max(n - 2, 0)) if block else k
    step = Step(flat.call, flat.y_avals, reverse, k, block, room, watch, n, flat.avals, needed)
    if watch is None:
        plain = lambda consts, init, xs: lax.scan(functools.partial(step.fun, consts), init, xs, n, **options)
    else:
        plain = functools.partial(sweep.plain, step)
    again = lambda consts, init, xs, _: sweep.nested(step, consts, init, xs, n)
    forward, backward = functools.partial(sweep.forward, step), functools.partial(sweep.backward, step)
    loop = CheckpointedLoop(plain, forward, flat.moves, backward, again)
    return flat.unflatten(*loop(flat.consts, flat.init, [jnp.asarray(x) for x in jax.tree.leaves(xs)]))


def while_loop(
    test: Callable[[Any], Any],
    fun: Callable[[Any], Any],
    init: Any,
    *,
    where: str = "while_loop",
    max_steps: int | None,
    checkpoint: int | str | MemoryBudget | None,
    watch: ProgressBar | None = None,
    is_still: Callable[[Any], bool] | None = None,
    sharing: tuple[int, int] = (1, 1),
) -> Any:
    """:func:`jax.lax.while_loop` with a reverse mode that stores at most `k` carries, and stops after `max_steps`.

    The other options are those of `scan`; with `checkpoint=None` there is no reverse mode.
    """
    if checkpoint is None and max_steps is None and watch is None:
        return lax.while_loop(test, fun, init)
    is_planned = checkpoint is None or isinstance(checkpoint, MemoryBudget)  # or it stores nothing
    k, room = 0 if is_planned else stored_carries(where, checkpoint, max_steps), None
    flat = Flat(lambda carry, _: (fun(carry), None), init, None)
    if isinstance(checkpoint, MemoryBudget):
        choice, _ = flat.planned(checkpoint, where, None, None, is_still, sharing)
        k, room = choice.carries, checkpoint.room(where, choice)
    refuse_references(where, flat.reference, _OWN_RULE)
    goes, consts = flat.test(test)
    step = Step(flat.call, (), False, k, 1, room, watch, None, flat.avals, all_leaves if room else flat.needed)
    bound = plan.LIMIT if max_steps is None else min(max_steps, plan.LIMIT)
    goes_on: Any = lambda consts: lambda i, carry: (i < bound) & goes(consts, carry)

    def plain(consts: Leaves, init: Leaves, xs: Leaves) -> tuple[Leaves, Leaves]:
        advance = lambda state: (state[0] + 1, step.fun(consts, state[1], xs)[0])
        start, done = (jnp.int32(0), init), lambda state: state[0]
        count, carry = watched_while(lambda state: goes_on(consts)(*state), advance, start, watch, done)
        if watch is not None:
            jax.debug.callback(watch.over, count)
        return carry, []

    if checkpoint is None:
        return flat.unflatten(plain(consts, flat.init, [])[0], [])[0]

    def again(consts: Leaves, init: Leaves, xs: Leaves, saved: Any) -> tuple[Leaves, Leaves]:
        go = lambda consts: lambda carry: step.fun(consts, carry, xs)[0]
        run = lambda consts, carry, x: (lax.cond(x[0] < saved.n, go(consts), lambda carry: carry, carry), [])
        bounded = dataclasses.replace(step, fun=run)
        return sweep.nested(bounded, consts, init, [jnp.arange(bound, dtype=jnp.int32)], bound)

    def loop(step: Step, near: CheckpointedLoop | None = None) -> CheckpointedLoop:
        def forward(selected: Selected, consts: Leaves, init: Leaves, xs: Leaves) -> tuple[Leaves, Leaves, Saved]:
            carry, saved = unknown_length.forward(step, selected, goes_on(consts), consts, init)
            return carry, xs, saved

        # Without a bound, no loop that can be transposed does the same.
        backward, bounded = functools.partial(sweep.backward, step), None if max_steps is None else again
        return CheckpointedLoop(plain, forward, flat.moves, backward, bounded, _NEEDS_BOUND.format(where), near)

    near = loop(dataclasses.replace(step, room=None))
    whole = loop(step, near) if room else near
    return flat.unflatten(whole(consts, flat.init, [])[0], [])[0]


_OWN_RULE = "A loop that stores some carries has a derivative rule of its own"
_NEEDS_BOUND = (
    "{}: reverse mode over another derivative needs to know how many steps there are at most. Write `max_steps=1000`, "
    "for example, or take the outer derivative in forward mode, as `hessian` does."
)


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
    """With the leaves of the carry that get a tangent in the course of the loop, `jaxpr` being that of a step."""
    carry = selected.carry
    n_consts = len(jaxpr.invars) - len(carry) - len(selected.xs)
    while True:
        found = moving(jaxpr, [*selected.consts[:n_consts], *carry, *selected.xs])
        outputs = jaxpr.outvars[: len(carry)]
        after = tuple(moves or (isinstance(v, jex.Var) and v in found) for moves, v in zip(carry, outputs, strict=True))
        if after == carry:
            return selected._replace(carry=carry)
        carry = after


_COPYING = (
    "concatenate", "conv", "dynamic_", "fft", "gather", "pad", "random_", "rev", "scatter", "slice", "sort", "split",
)  # fmt: skip


_PRODUCTS = ("dot_general", "conv_general_dilated")


class Flat:
    """A step as a function of lists of arrays, with all that it closes over as its first argument.

    Attributes:
      call: one step, `call(consts, carry, x) -> (carry, y)`. It holds no array: derivative rules outlive the trace.
      moves, needed: which leaves of the carry get a tangent, and which ones the derivative depends on.
      init: the leaves of the initial carry, none of them weakly typed.
    """

    def __init__(self, fun: Callable[[Any, Any], tuple[Any, Any]], init: Any, x: Any) -> None:
        leaves, self._tree = jax.tree.flatten(init)
        self.init = [strong(leaf) for leaf in leaves]
        self._typed_init = init
        traced: Any = jax.make_jaxpr(fun, return_shape=True)(init, x)
        closed, (carry_type, y_type) = traced
        self.reference = made_in(closed)
        n_carry = jax.tree.structure(carry_type).num_leaves
        self.call, self._jaxpr, self.consts = as_function(closed, n_carry)
        self.moves = functools.partial(moved, self._jaxpr)
        self._y_tree = jax.tree.structure(y_type)
        self.avals, self.y_avals = tuple(map(typeof, self.init)), tuple(closed.out_avals[n_carry:])
        inputs = list(map(typeof, self.consts)), list(self.avals), list(map(typeof, jax.tree.leaves(x)))
        step = Step(self.call, self.y_avals, False, 0)
        own = lambda selected: selected._replace(consts=selected.consts[: len(inputs[0])])
        self.needed = functools.cache(lambda selected: Tape(step, own(selected), *inputs).needed)
        self._is_weak = [aval.weak_type for aval in closed.out_avals]

    def test(self, fun: Callable[[Any], Any]) -> tuple[Callable[[Leaves, Leaves], Any], Leaves]:
        """A condition as a function of constants and carry, and the constants: those of the step and its own."""
        traced: Any = jax.make_jaxpr(fun, return_shape=True)(self._typed_init)
        closed, out = traced
        if jax.tree.structure(out) != jax.tree.structure(0) or (out.shape, out.dtype) != ((), bool):
            lax.while_loop(fun, lambda carry: carry, self._typed_init)  # JAX says what is wrong
        n, (call, _, consts) = len(self.consts), as_function(closed, 0)
        return lambda consts, carry: call(consts[n:], carry, [])[1][0], [*self.consts, *consts]

    def planned(
        self,
        budget: MemoryBudget,
        where: str,
        n: int | None,
        xs: Any,
        is_still: Callable[[Any], bool] | None,
        sharing: tuple[int, int],
    ) -> tuple[Choice, Any]:
        """What a budget chooses, and the inputs; these and all else say when they get lanes after that."""
        lanes = known_lanes([*self.consts, *self.init, *jax.tree.leaves(xs)])
        choice = budget.choose(where, n, self.sizes(xs, is_still), lanes=math.prod(lanes), sharing=sharing)
        if is_still is None:  # the budget of a function counts lanes by itself
            seen = noticed(len(lanes), budget.later(where, choice))
            marked = jax.custom_jvp(lanes_first)  # what is not differentiated stores nothing
            marked.defjvp(lambda primals, dots: (seen(primals[0]), dots[0]), symbolic_zeros=True)
            self.consts, self.init, xs = marked((self.consts, self.init, xs))
        return choice, xs

    def sizes(self, xs: Any, is_still: Callable[[Any], bool] | None = None) -> Sizes:
        """The bytes of the loop, if it is differentiated in all that can be and is not still.

        What the step closes over is not differentiated if it is no tracer. The compiler fuses elementwise work, and
        keeps what copies parts of arrays: two carries, as measured for stencils in one and two dimensions, and two more
        where normal numbers are drawn. A product that is wider than the carry has a cotangent of its size.
        """
        can = lambda leaf: is_differentiable(leaf) and not (is_still and is_still(leaf))
        consts = tuple(isinstance(leaf, Tracer) and can(leaf) for leaf in self.consts)
        inputs = jax.tree.leaves(xs)
        selected = self.moves(Selected(consts, tuple(map(can, self.init)), tuple(map(can, inputs))))
        step = Step(self.call, self.y_avals, False, 0)
        example = [slice_type(x) for x in inputs]
        carry = sum(leaf.nbytes for leaf in self.init)
        tape = Tape(step, selected, self.consts, self.init, example)
        unit = carry + sum(map(nbytes, Sharing.of(self.avals, tape.avals).own(tape.avals)))
        largest = lambda site: max((nbytes(v.aval) for v in site.eqn.outvars), default=0)
        sites = list(walk(self._jaxpr))
        copying = lambda names: any(largest(s) >= carry // 8 for s in sites if s.primitive.startswith(names))
        copied = 2 * (copying(_COPYING) + copying("erf_inv"))
        wide = max((largest(site) for site in sites if site.primitive in _PRODUCTS), default=0)
        scratch = max(copied * carry, wide - carry)
        return Sizes(carry, sum(map(nbytes, tape.avals)), scratch, unit)

    def unflatten(self, carry: Leaves, ys: Leaves) -> tuple[Any, Any]:
        """The carry and the stacked outputs in their structures, and weakly typed where they were for the step."""
        leaves = [weak(leaf) if is_weak else leaf for leaf, is_weak in zip((*carry, *ys), self._is_weak, strict=True)]
        return self._tree.unflatten(leaves[: len(carry)]), self._y_tree.unflatten(leaves[len(carry) :])


def strong(x: Any) -> Any:
    """Without a weak type: the sweeps write carries into arrays, which have none."""
    x = x if isinstance(x, jax.Array) else jnp.asarray(x)
    return lax.convert_element_type(x, x.dtype) if x.aval.weak_type else x
