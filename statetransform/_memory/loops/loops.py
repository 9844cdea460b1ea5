"""`scan` and `while_loop` with few stored carries, for functions of pytrees.

The step is traced once and becomes a function of lists of arrays that holds no array: `Flat`. What `checkpoint=` says
becomes a number of carries and of steps to a block; the sweeps over these are the parts of one differentiable
`CheckpointedLoop`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..._jax import slice_type, typeof
from ..context import Context
from ..programs.references import refuse_references
from . import plan, reversible, sweep, unknown_length
from .arrays import Leaves
from .budget import MemoryBudget
from .flat import Flat
from .options import Reversible, stored_carries
from .progress import ProgressBar
from .progress import while_loop as watched_while
from .step import Saved, Selected, Step, all_leaves
from .tangent import CheckpointedLoop

_NOTHING_KNOWN = Context()


def scan(
    fun: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    where: str = "scan",
    checkpoint: int | str | MemoryBudget | Reversible | None,
    block: int = 1,
    watch: ProgressBar | None = None,
    is_still: Callable[[Any], bool] | None = None,
    shared_by: tuple[int, int] = (1, 1),
    context: Context = _NOTHING_KNOWN,
    **options: Any,
) -> tuple[Any, Any]:
    """:func:`jax.lax.scan` that stores at most `k` carries for the backward pass.

    Args:
      where: the loop, for messages.
      checkpoint: the number of stored carries besides the initial one, a name that `stored_carries` knows, or a budget;
        "step" for all carries, None for all residuals; or the step backwards.
      block: of how many steps to store the residuals; 0 for units that hold a carry or the residuals of a step.
      is_still: of a loop in a function with a budget, whether an array is known to have no tangent; else None.
      shared_by: how many loops share a budget's room on the device, and how many that far away.
      context: what is known of the call, for a budget.
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
        is_number = not isinstance(checkpoint, MemoryBudget | Reversible)
        k = stored_carries(where, checkpoint, n) if is_number else 0
    if any(typeof(x).sharding.spec[0] is not None for x in jax.tree.leaves(xs)):
        return whole()  # JAX's own error: the axis that a loop steps along is not sharded
    flat = Flat(fun, init, jax.tree.map(slice_type, xs))
    if isinstance(checkpoint, MemoryBudget):
        choice, xs = flat.planned(checkpoint, where, n, xs, is_still, shared_by, context)
        k, block, room = choice.carries, choice.block, checkpoint.room(where, choice)
        if choice.is_plain and watch is None:
            body = lambda carry, x: flat.call(flat.consts, carry, x)
            return flat.unflatten(*lax.scan(body, flat.init, jax.tree.leaves(xs), n, **options))
    refuse_references(where, flat.reference, _OWN_RULE)
    needed = all_leaves if room else flat.needed
    k = min(k, plan.useful(n)) if block else k
    step = Step(flat.call, flat.y_avals, reverse, k, block, room, watch, n, flat.avals, needed)
    if watch is None:
        plain = lambda consts, init, xs: lax.scan(functools.partial(step.fun, consts), init, xs, n, **options)
    else:
        plain = functools.partial(sweep.plain, step)
    forward, backward, consts = _sweeps(step, flat, where, checkpoint)
    nested = lambda consts, init, xs, _: sweep.nested(step, consts, init, xs, n)
    loop = CheckpointedLoop(plain, forward, flat.moves, flat.reached, backward, nested)
    return flat.unflatten(*loop(consts, flat.init, [jnp.asarray(x) for x in jax.tree.leaves(xs)]))


def _sweeps(step: Step, flat: Flat, where: str, checkpoint: Any) -> tuple[Any, Any, Leaves]:
    """The forward and the backward sweep of a loop of known length, and its constants."""
    if not isinstance(checkpoint, Reversible):
        return functools.partial(sweep.forward, step), functools.partial(sweep.backward, step), flat.consts
    undo, consts = flat.inverse(where, checkpoint.inverse)
    forward = functools.partial(reversible.forward, step, checkpoint.every)
    return forward, functools.partial(reversible.backward, step, undo, checkpoint.every), consts


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
    shared_by: tuple[int, int] = (1, 1),
    context: Context = _NOTHING_KNOWN,
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
        choice, _ = flat.planned(checkpoint, where, None, None, is_still, shared_by, context)
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
            jax.debug.callback(watch.ended, count)
        return carry, []

    if checkpoint is None:
        return flat.unflatten(plain(consts, flat.init, [])[0], [])[0]

    def nested(consts: Leaves, init: Leaves, xs: Leaves, saved: Any) -> tuple[Leaves, Leaves]:
        go = lambda consts: lambda carry: step.fun(consts, carry, xs)[0]
        run = lambda consts, carry, x: (lax.cond(x[0] < saved.n, go(consts), lambda carry: carry, carry), [])
        bounded = dataclasses.replace(step, fun=run)
        return sweep.nested(bounded, consts, init, [jnp.arange(bound, dtype=jnp.int32)], bound)

    def loop(step: Step, near: CheckpointedLoop | None = None) -> CheckpointedLoop:
        def forward(selected: Selected, consts: Leaves, init: Leaves, xs: Leaves) -> tuple[Leaves, Leaves, Saved]:
            carry, saved = unknown_length.forward(step, selected, goes_on(consts), consts, init)
            return carry, xs, saved

        # Without a bound, no loop that can be transposed does the same.
        backward, bounded = functools.partial(sweep.backward, step), None if max_steps is None else nested
        return CheckpointedLoop(
            plain, forward, flat.moves, flat.reached, backward, bounded, _NEEDS_BOUND.format(where), near
        )

    near = loop(dataclasses.replace(step, room=None))
    whole = loop(step, near) if room else near
    return flat.unflatten(whole(consts, flat.init, [])[0], [])[0]


_OWN_RULE = "A loop that stores some carries has a derivative rule of its own"
_NEEDS_BOUND = (
    "{}: reverse mode over another derivative needs to know how many steps there are at most. Write `max_steps=1000`, "
    "for example, or take the outer derivative in forward mode, as `hessian` does."
)
