"""`scan` with few stored carries: the sweeps as one differentiable function.

The function is a `custom_jvp`: undifferentiated it is the plain scan. Its derivative rule runs the forward sweep and
binds the tangent as one linear equation: in forward mode that runs the differentiated loop, in reverse mode its
transpose is the backward sweep. The sweeps are loops of unknown length, which cannot be transposed; where they
are differentiated again, nested checkpointed scans take their place.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core.primitives import convert_element_type_p

from .._core.jaxcompat import without_constvars
from . import plan, sweep, unknown_length
from .budget import MemoryBudget
from .chunks import Watch, is_differentiable
from .chunks import while_loop as watched_while
from .linear import Linear
from .sweep import Leaves, Saved, Selected, Step, merge, pick
from .tape import Blocks, Tape

Primals = tuple[Leaves, Leaves, Leaves]  # constants, initial carry, inputs


def scan(
    fun: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    *,
    where: str = "scan",
    checkpoint: int | str | MemoryBudget | None,
    block: int = 1,
    watch: Watch | None = None,
) -> tuple[Any, Any]:
    """:func:`jax.lax.scan` that stores at most `k` carries for the backward pass.

    Args:
      fun, init, xs, length, reverse, unroll: as in :func:`jax.lax.scan`; `unroll` is for the undifferentiated loop.
      where: the loop, for messages.
      checkpoint: the number of stored carries besides the initial one, a name that `plan.slots` knows, or a budget;
        "step" for all carries, None for all residuals.
      block: of how many steps to store the residuals.
      watch: who wants to know how far it is.

    Returns:
      `(carry, ys)` as in :func:`jax.lax.scan`.
    """
    n = steps_of(xs, length)
    whole = lambda: lax.scan(fun, init, xs, length, reverse, unroll, _split_transpose)
    if checkpoint is None or checkpoint == "step":  # as other loops, to be watched like them
        k, block = (0, n or 1) if checkpoint is None else (n or 0, 1)
    else:
        k = 0 if isinstance(checkpoint, MemoryBudget) else plan.slots(where, checkpoint, n)
    if not n:
        return whole()  # nothing to store, or JAX's own error
    flat = Flat(fun, init, jax.tree.map(lambda x: jax.eval_shape(lambda x: x[0], x), xs))
    if not flat.keeps_carry:
        return whole()  # JAX's own error
    if isinstance(checkpoint, MemoryBudget):
        choice = checkpoint.choose(where, n, *flat.nbytes(xs))
        k, block = choice.carries, choice.block
        if choice.is_plain and watch is None:
            return whole()
    step = Step(flat.call, flat.y_avals, reverse, min(k, max(n - 2, 0)), watch, n)
    if watch is None:
        body = lambda consts: lambda carry, x: step.fun(consts, carry, x)
        plain = lambda consts, init, xs: lax.scan(body(consts), init, xs, n, reverse, unroll, _split_transpose)
    else:
        plain = lambda consts, init, xs: sweep.plain(step, consts, init, xs, n)
    again = lambda consts, init, xs, _: sweep.nested(step, consts, init, xs, n)
    if block > 1:
        blocks = Blocks(step, n, block)
        loop = Loop(step, plain, blocks.forward, blocks.backward, again)
    else:
        forward = lambda _, consts, init, xs: sweep.forward(step, consts, init, xs, n)
        loop = Loop(step, plain, forward, functools.partial(sweep.backward, step), again)
    return flat.unflatten(*loop(flat.consts, flat.init, [jnp.asarray(x) for x in jax.tree.leaves(xs)]))


def while_loop(
    test: Callable[[Any], Any],
    fun: Callable[[Any], Any],
    init: Any,
    *,
    where: str = "while_loop",
    max_steps: int | None,
    checkpoint: int | str | MemoryBudget | None,
    watch: Watch | None = None,
) -> Any:
    """:func:`jax.lax.while_loop` with a reverse mode that stores at most `k` carries.

    Args:
      test, fun, init: as in :func:`jax.lax.while_loop`.
      where: the loop, for messages.
      max_steps: after how many steps to stop at the latest.
      checkpoint: the number of stored carries besides the initial one, a name that `plan.slots` knows, or a budget;
        None for no reverse mode.
      watch: who wants to know how far it is.

    Returns:
      The last carry.
    """
    if checkpoint is None and max_steps is None and watch is None:
        return lax.while_loop(test, fun, init)
    k = 0 if checkpoint is None or isinstance(checkpoint, MemoryBudget) else plan.slots(where, checkpoint, max_steps)
    flat = Flat(lambda carry, _: (fun(carry), None), init, None)
    if not flat.keeps_carry:
        return lax.while_loop(test, fun, init)  # JAX's own error
    if isinstance(checkpoint, MemoryBudget):
        k = checkpoint.choose(where, None, *flat.nbytes(None)).carries
    n_consts, call = len(flat.consts), flat.call
    goes, test_consts = flat.test(test)
    step = Step(lambda consts, carry, x: call(consts[:n_consts], carry, x), (), False, k, watch)
    bound = plan.LIMIT if max_steps is None else max_steps

    def goes_on(consts: Leaves) -> Callable[[Any, Leaves], Any]:
        return lambda i, carry: (i < bound) & goes(consts[n_consts:], carry)

    def plain(consts: Leaves, init: Leaves, xs: Leaves) -> tuple[Leaves, Leaves]:
        advance = lambda state: (state[0] + 1, step.fun(consts, state[1], xs)[0])
        start, done = (jnp.int32(0), init), lambda state: state[0]
        return watched_while(lambda state: goes_on(consts)(*state), advance, start, watch, done)[1], []

    if checkpoint is None:
        return flat.unflatten(plain([*flat.consts, *test_consts], flat.init, [])[0], [])[0]

    def forward(_: Selected, consts: Leaves, init: Leaves, xs: Leaves) -> tuple[Leaves, Leaves, Saved]:
        carry, saved = unknown_length.forward(step, goes_on(consts), consts, init)
        return carry, xs, saved

    def again(consts: Leaves, init: Leaves, xs: Leaves, saved: Any) -> tuple[Leaves, Leaves]:
        run = lambda consts, carry, x: (
            lax.cond(x[0] < saved.n, lambda carry: step.fun(consts, carry, xs)[0], lambda carry: carry, carry),
            [],
        )
        bounded = dataclasses.replace(step, fun=run)
        return sweep.nested(bounded, consts, init, [jnp.arange(bound)], bound)

    backward = functools.partial(sweep.backward, step)
    # Without a bound, no loop that can be transposed does the same.
    loop = Loop(step, plain, forward, backward, None if max_steps is None else again)
    return flat.unflatten(loop([*flat.consts, *test_consts], flat.init, [])[0], [])[0]


def steps_of(xs: Any, length: Any) -> int | None:
    """The number of steps; None where JAX has something to say about the lengths."""
    lengths = {np.shape(x)[:1] for x in jax.tree.leaves(xs)} | (set() if length is None else {(int(length),)})
    return lengths.pop()[0] if len(lengths) == 1 and () not in lengths else None


def as_function(closed: Any, n_carry: int) -> tuple[Callable[[Leaves, Leaves, Leaves], tuple[Leaves, Leaves]], Leaves]:
    """A jaxpr as a function of its constants, a carry and inputs; and the constants."""
    jaxpr, consts = without_constvars(closed)

    def call(consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        out = jax.core.eval_jaxpr(jaxpr, (), *consts, *carry, *x)
        out = [strong(y) for y in out]
        return out[:n_carry], out[n_carry:]

    return call, [jnp.asarray(c) if isinstance(c, np.ndarray | np.generic) else c for c in consts]


class Flat:
    """A step as a function of lists of arrays, with all that it closes over as its first argument.

    Attributes:
      call: one step, `call(consts, carry, x) -> (carry, y)`. It holds no array: derivative rules outlive the trace.
      consts: what the step closes over.
      init: the leaves of the initial carry, none of them weakly typed.
      y_avals: the abstract values of the outputs of a step.
      keeps_carry: whether the step returns a carry of the type that it takes.
    """

    def __init__(self, fun: Callable[[Any, Any], tuple[Any, Any]], init: Any, x: Any) -> None:
        leaves, self._tree = jax.tree.flatten(init)
        self.init = [strong(leaf) for leaf in leaves]
        self._typed_init = init
        traced: Any = jax.make_jaxpr(fun, return_shape=True)(init, x)
        closed, (carry_type, y_type) = traced
        self.call, self.consts = as_function(closed, jax.tree.structure(carry_type).num_leaves)
        self._y_tree = jax.tree.structure(y_type)
        before = [(leaf.shape, leaf.dtype) for leaf in self.init]
        after = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(carry_type)]
        self.y_avals = tuple(closed.out_avals[len(after) :])
        self._is_weak = [aval.weak_type for aval in closed.out_avals]
        self.keeps_carry = jax.tree.structure(carry_type) == self._tree and before == after

    def test(self, fun: Callable[[Any], Any]) -> tuple[Callable[[Leaves, Leaves], Any], Leaves]:
        """A condition on the carry as such a function, and what it closes over."""
        call, consts = as_function(jax.make_jaxpr(fun)(self._typed_init), 0)
        return lambda consts, carry: call(consts, carry, [])[1][0], consts

    def nbytes(self, xs: Any) -> tuple[int, int]:
        """Bytes of the carry, and of what one step records if it is differentiated in all that can be.

        What the step closes over is not differentiated if it is no tracer.
        """
        x = [jax.eval_shape(lambda x: x[0], x) for x in jax.tree.leaves(xs)]
        groups = self.consts, self.init, x
        consts, init, inputs = [tuple(is_differentiable(leaf) for leaf in leaves) for leaves in groups]
        traced = tuple(m and isinstance(c, jax.core.Tracer) for c, m in zip(self.consts, consts, strict=True))
        selected = Selected(traced, init, inputs)
        step = Step(self.call, self.y_avals, False, 0)
        return sum(leaf.nbytes for leaf in self.init), Tape(step, selected, *groups).nbytes

    def unflatten(self, carry: Leaves, ys: Leaves) -> tuple[Any, Any]:
        """The carry and the stacked outputs in their structures, and weakly typed where they were for the step."""
        leaves = [weak(leaf) if is_weak else leaf for leaf, is_weak in zip((*carry, *ys), self._is_weak, strict=True)]
        return self._tree.unflatten(leaves[: len(carry)]), self._y_tree.unflatten(leaves[len(carry) :])


def strong(x: Any) -> Any:
    """Without a weak type: the sweeps write carries into arrays, which have none."""
    x = x if isinstance(x, jax.Array) else jnp.asarray(x)
    return lax.convert_element_type(x, x.dtype) if x.aval.weak_type else x


def weak(x: Any) -> Any:
    """With a weak type, which no public function gives."""
    return convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None)


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """What is known of a loop over lists of arrays. All take constants, initial carry and inputs.

    Attributes:
      step: one step.
      plain: the loop for who does not differentiate.
      forward: the loop that stores carries; gives what it saved besides the last carry and the outputs. Before the
        others it takes which primals are differentiated.
      backward: the cotangents of these; see `sweep.backward`.
      again: the loop for derivatives of the sweeps; gets what was saved, too, for the number of steps. None if there
        is none: then the sweeps themselves are differentiated, in forward mode.
    """

    step: Step
    plain: Callable[[Leaves, Leaves, Leaves], tuple[Leaves, Leaves]]
    forward: Callable[[Selected, Leaves, Leaves, Leaves], tuple[Leaves, Leaves, Any]]
    backward: Callable[[Selected, Leaves, Leaves, Any, Leaves, Leaves], Leaves]
    again: Callable[[Leaves, Leaves, Leaves, Any], tuple[Leaves, Leaves]] | None

    def __call__(self, consts: Leaves, init: Leaves, xs: Leaves) -> tuple[Leaves, Leaves]:
        """Runs the loop, differentiably."""
        loop = jax.custom_jvp(self.plain)

        def rule(primals: Primals, tangents: Primals) -> Any:
            selected = perturbed(tangents)
            carry, ys, saved = self.first_sweep(selected)(*primals)
            return (carry, ys), tangent(self, selected, primals, tangents, (carry, ys), saved)

        loop.defjvp(rule, symbolic_zeros=True)
        return loop(consts, init, xs)

    def first_sweep(self, selected: Selected) -> Callable[[Leaves, Leaves, Leaves], tuple[Leaves, Leaves, Any]]:
        """The forward sweep, differentiable in its turn."""
        sweep = jax.custom_jvp(functools.partial(self.forward, selected))

        def rule(primals: Primals, tangents: Primals) -> Any:
            out, moved = sweep(*primals), perturbed(tangents)
            own = out[2] if moved == selected else self.first_sweep(moved)(*primals)[2]
            dots = tangent(self, moved, primals, tangents, out[:2], own)
            # What is saved follows from the primals, and the tangent depends on them.
            return out, (*dots, jax.tree.map(zero_tangent, out[2]))

        sweep.defjvp(rule, symbolic_zeros=True)
        return sweep


def perturbed(tangents: Primals) -> Selected:
    """Which of the primals have a tangent that is not zero for certain."""
    is_zero = lambda dot: (
        type(dot) is jax.custom_derivatives.SymbolicZero or getattr(dot, "dtype", None) == jax.dtypes.float0
    )
    return Selected(*[tuple(not is_zero(dot) for dot in dots) for dots in tangents])


def zero_tangent(x: Any) -> Any:
    """The zero among the tangents of `x`."""
    return jnp.zeros_like(x) if is_differentiable(x) else np.zeros(np.shape(x), jax.dtypes.float0)


def tangent(
    loop: Loop, selected: Selected, primals: Primals, tangents: Primals, out: tuple[Leaves, Leaves], saved: Any
) -> tuple[Leaves, Leaves]:
    """The tangents of the last carry and the outputs, as one linear equation in those of the primals.

    Args:
      loop: the loop.
      selected: which of the tangents are not zero.
      primals, tangents: constants, initial carry and inputs.
      out: the last carry and the outputs.
      saved: what the backward sweep starts from.
    """
    residuals, tree = jax.tree.flatten((primals, saved))
    outputs, out_tree = jax.tree.flatten(out)
    is_moving = [is_differentiable(y) for y in outputs]
    n_carry = len(out[0])

    def restricted(primals: Primals, saved: Any) -> tuple[Callable[..., Leaves], tuple[Leaves, ...]]:
        """The loop as a function of what is differentiated, and its argument."""

        def fun(*some: Leaves) -> Leaves:
            consts, init, xs = [merge(*parts) for parts in zip(primals, selected, some, strict=True)]
            out = loop.plain(consts, init, xs) if loop.again is None else loop.again(consts, init, xs, saved)
            return pick(jax.tree.leaves(out), is_moving)

        return fun, tuple(pick(whole, mask) for whole, mask in zip(primals, selected, strict=True))

    def in_groups(flat: Sequence[Any]) -> tuple[Leaves, ...]:
        rest = iter(flat)
        return tuple([next(rest) for marked in mask if marked] for mask in selected)

    def forward_mode(residuals: Leaves, dots: Leaves) -> Leaves:
        fun, args = restricted(*tree.unflatten(residuals))
        return jax.jvp(fun, args, in_groups(dots))[1]

    def again(primals: Primals, saved: Any, cts: Leaves) -> Leaves:
        """The same cotangents as of the backward sweep, differentiable."""
        if loop.again is None:
            return sweep_back(primals, loop.forward(selected, *primals)[2], cts)
        fun, args = restricted(primals, saved)
        present = [i for i, ct in enumerate(cts) if ct is not None]
        _, pull = jax.vjp(lambda *args: [fun(*args)[i] for i in present], *args)
        return jax.tree.leaves(pull([cts[i] for i in present]))

    def sweep_back(primals: Primals, saved: Any, cts: Leaves) -> Leaves:
        consts, _, xs = primals
        everywhere = merge([None] * len(is_moving), is_moving, cts)
        ct_carry, ct_ys = everywhere[:n_carry], everywhere[n_carry:]
        carry = [jnp.zeros_like(y) if ct is None else ct for y, ct in zip(out_avals, ct_carry, strict=False)]
        carry = pick(carry, is_moving[:n_carry])
        return loop.backward(selected, consts, xs, saved, carry, ct_ys)

    backward_sweep = jax.custom_jvp(sweep_back)
    backward_sweep.defjvp(lambda args, dots: (backward_sweep(*args), jax.jvp(again, args, dots)[1]))

    def transpose(residuals: Leaves, cts: Leaves) -> Leaves:
        return backward_sweep(*tree.unflatten(residuals), list(cts))

    out_avals = [jax.core.ShapedArray(np.shape(y), jnp.result_type(y)) for y in outputs]
    linear = Linear(forward_mode, transpose, tuple(pick(out_avals, is_moving)), len(residuals))
    some = [pick(dots, mask) for dots, mask in zip(tangents, selected, strict=True)]
    moved = linear(residuals, [dot for group in some for dot in group])
    return out_tree.unflatten(merge([zero_tangent(y) for y in outputs], is_moving, moved))
