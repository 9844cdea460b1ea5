"""Loops over the leading axis of arrays: `scan`, `for_loop`, `map`; and `associative_scan`.

States that are written are part of the carry; states that are only read are constants of the loop.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import _memory
from .._jax import is_jit_disabled, slice_type, typeof
from .._memory import ProgressBar, Reversible
from .._traces.arguments import hide, reveal
from .._traces.lift import at_once
from .._traces.tracebacks import boundary
from .._traces.wrapper import decorate
from ._bodies import AROUND, Body, Checkpoint, check_loop, form_of, number_of_steps, with_inverse
from ._eager_loops import in_one_program
from ._options import as_in
from ._vmap import Batched


@boundary
@as_in(jax.lax.scan)
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    checkpoint: Checkpoint = None,
    progress: Any = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Loops over the leading axis of arrays: :func:`jax.lax.scan` with states.

    States that the body writes are part of the carry.

    Args:
      f (Callable): the body: `f(carry, x)` returns `(carry, y)`.
      init (pytree): the carry on entry. The body must return a carry of the same structure, shapes and dtypes.
      xs (pytree, optional): arrays whose leading axis the loop runs over. Default: None.
      length (int, optional): the number of steps; needed where `xs` has no array. Default: None.
      reverse (bool): whether to run over `xs` from last to first. Default: False.
      unroll (int | bool): how many steps one iteration of the compiled loop evaluates; True unrolls the whole
        loop. Default: 1.
      checkpoint (None | int | str | MemoryBudget): what reverse mode stores. None: the residuals of every step, as JAX.
        "step": the carry of every step, from which the step is recomputed. A number `k`: at most `k` carries besides
        the initial one, with the fewest step evaluations possible, those of :func:`statetransform.schedule`. "sqrt",
        "log": that with the square root or the binary logarithm of the number of steps. A
        :class:`statetransform.MemoryBudget`: what fits. With any but the first two, `unroll` is for the loop that is
        not differentiated.
      progress (bool | str | int | Mapping): True for a `tqdm` bar, a string for its label, a number of steps
        between updates, or a mapping of `every` and arguments of `tqdm.tqdm`. Default: None, no bar.

    Returns:
      `(carry, ys)` as in :func:`jax.lax.scan`.

    Raises:
      StateStructureError: the body changes shape, dtype or structure of a state; the message shows both types.
      StateTraceError: the body makes a state that outlives it; make it before the loop.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html

    Example:
      >>> from statetransform import State, transform
      >>> n = State(0, name="n")
      >>> import jax.numpy as jnp
      >>> def body(total, x):
      ...     n.value = n.value + 1
      ...     return total + x, total
      >>> total, _ = transform.scan(body, 0.0, jnp.arange(4.0))
      >>> float(total), int(n.value)
      (6.0, 4)

      Ten thousand steps backwards with 20 stored carries:

      >>> u = State(jnp.linspace(0.0, 1.0, 50), name="u")
      >>> def simulate(rate):
      ...     def step(_, x):
      ...         u.value = u.value + rate * jnp.sin(u.value)
      ...         return None, None
      ...     transform.scan(step, None, length=10_000, checkpoint=20)
      ...     return u.value.mean()
      >>> gradient = transform.grad(simulate)(1e-4)
    """
    options |= {"length": length, "reverse": reverse, "unroll": unroll}
    return _scan("scan", f, init, xs, checkpoint, progress, _OVER_CARRY, **options)


_NO_AXIS = "each leaf of `xs` needs a leading axis to loop over, but one is a scalar."
_INDEX = "For the index of the step pass `jnp.arange(n)`."


@boundary
def for_loop(
    f: Callable[..., Any],
    *xs: Any,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    checkpoint: Checkpoint = None,
    progress: Any = None,
) -> Any:
    """Calls a function for each slice of some arrays: :func:`jax.lax.scan` with the states as the only carry.

    Args:
      f (Callable): called with one slice of each of `xs`.
      *xs (pytree): arrays with the same leading axis; none with `length`.
      length, reverse, unroll, checkpoint, progress: as for :func:`scan`.

    Returns:
      The outputs, stacked on a new leading axis.

    Raises:
      StateStructureError: the body changes shape, dtype or structure of a state; the message shows both types.
      StateTraceError: the body makes a state that outlives it; make it before the loop.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html

    Example:
      >>> from statetransform import State, transform
      >>> n = State(0, name="n")
      >>> def step(x):
      ...     n.value = n.value + 1
      ...     return 2 * x
      >>> import jax.numpy as jnp
      >>> transform.for_loop(step, jnp.arange(3)).tolist(), int(n.value)
      ([0, 2, 4], 3)
    """
    try:
        options = {"length": length, "reverse": reverse, "unroll": unroll}
        return _scan("for_loop", f, None, xs, checkpoint, progress, _OVER_SLICES, **options)[1]
    except TypeError as error:
        if not xs and re.fullmatch(r".*\(\) missing 1 required positional argument: '\w+'", str(error)):
            error.add_note(f"With `length=` alone, `for_loop` calls the body without arguments. {_INDEX}")
        raise


class _Calls(NamedTuple):
    """How a scan calls its body: the arguments of carry and slice, and new carry and output of what it returns.

    `before` is the carry that the step backwards returns.
    """

    args: Callable[[Any, Any], tuple[Any, ...]]
    split: Callable[[Any], tuple[Any, Any]]
    before: Callable[[Any], Any]


def _pair(out: Any) -> tuple[Any, Any]:
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise TypeError(f"scan: the body must return a pair (carry, y), but it returned {out!r}")
    return out[0], out[1]


_OVER_CARRY = _Calls(lambda carry, x: (carry, x), _pair, lambda out: out)
_OVER_SLICES = _Calls(
    lambda carry, x: x, lambda out: (None, out), lambda out: None
)  # of several arrays, without a carry of the user's


def _scan(
    where: str,
    f: Callable[..., Any],
    init: Any,
    xs: Any,
    checkpoint: Checkpoint,
    progress: Any,
    calls: _Calls,
    **options: Any,
) -> tuple[Any, Any]:
    """The scan behind `scan`, `for_loop` and `map`, which differ in how the body is called."""
    check_loop(where, checkpoint, f)
    for x in xs if type(xs) is tuple else (xs,):
        if type(x) is range:
            raise TypeError(f"{where}: `xs` must hold arrays, not a range. {_INDEX}")
        if type(x) is int:
            raise NoLeadingAxisError(f"{where}: {_NO_AXIS} For {x} calls without arguments write `length={x}`.")
    if options["length"] is not None:
        options["length"] = number_of_steps(where, "length", options["length"])
    if is_jit_disabled():
        return _scan_in_python(f, init, xs, calls, options)
    (init, xs), objects = hide((init, xs))
    n = _length_of(where, xs, options["length"])
    slices = jax.tree.map(slice_type, xs)
    body = Body(where, f, init, lambda carry: calls.args(carry, slices), lambda out: calls.split(out)[0], objects)
    watch = ProgressBar(where, n, progress) if progress and n else None
    functions = [body.over_states(body.found)]
    if isinstance(checkpoint, Reversible):
        functions.append(body.backwards(checkpoint.inverse, calls.args(body.init[0], slices), calls.before))
        checkpoint = Reversible(functions[1].call, checkpoint.every)
    call = functions[0].call

    def run(held: list[Any], init: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            out, values = call(held[0], carry[1], *calls.args(carry[0], x))
            user_carry, y = calls.split(out)
            return (user_carry, values), y

        undo = lambda back, carry, x: back(held[1], carry[1], *calls.args(carry[0], x))
        given: Any = {"where": where, "checkpoint": with_inverse(checkpoint, undo), "watch": watch, "context": AROUND}
        return _memory.scan(step, init, xs, **given, **options)

    if watch is None:
        out = in_one_program(where, functions, (form_of(checkpoint), *options.items(), calls), run, body.init, xs)
    else:
        out = run([fun.held for fun in functions], body.init, xs)
    (carry, values), ys = out
    return body.finish((carry, ys), values)


def _length_of(where: str, xs: Any, length: int | None) -> int:
    """The number of steps; refuses arrays that do not say it, or not the same."""
    if length is None and not jax.tree.leaves(xs):
        whole = "" if xs is None else " `xs` has none: states, and objects that hold states, are passed whole."
        raise ValueError(
            f"{where}: pass `xs`, the arrays to loop over, or a number of steps, such as `length=100`.{whole}"
        )
    lengths = {np.shape(x)[0] for x in jax.tree.leaves(xs) if np.ndim(x)}
    if len({*lengths, length} - {None}) > 1:
        jax.lax.scan(lambda carry, _: (carry, None), None, xs, length)  # says what is wrong
    if not all(typeof(x).shape for x in jax.tree.leaves(xs)):
        raise NoLeadingAxisError(f"{where}: {_NO_AXIS}")
    (n,) = {*lengths, length} - {None}
    return n


def _scan_in_python(
    f: Callable[..., Any], init: Any, xs: Any, calls: _Calls, options: dict[str, Any]
) -> tuple[Any, Any]:
    """The loop under :func:`jax.disable_jit`: JAX slices the inputs and stacks the outputs, the carry is Python's."""
    xs, objects = hide(xs)

    def run(carry: Any) -> tuple[Any, Any]:
        def step(_: None, x: Any) -> tuple[None, Any]:
            nonlocal carry
            carry, y = calls.split(f(*calls.args(carry, reveal(x, objects))))
            return None, y

        _, ys = jax.lax.scan(step, None, xs, **options)
        return carry, ys

    return at_once(run, init)


@boundary
def map(
    f: Callable[[Any], Any],
    xs: Any,
    *,
    batch_size: int | None = None,
    checkpoint: Checkpoint = None,
    progress: Any = None,
) -> Any:
    """Applies a function to each slice, one after another: :func:`jax.lax.map` with states.

    Args:
      f (Callable): the function of one slice.
      xs (pytree): arrays with the same leading axis, over which to map.
      batch_size (int, optional): how many slices to evaluate at once by `vmap`. Default: None, one after the other.
        The slices of a batch share the states: what a batch writes, the next one sees, and all slices of a batch
        must write the same. Each has random numbers of its own.
      checkpoint, progress: as for :func:`scan`, whose steps are the slices or the batches. What the slices of `f`
        need for the backward pass is recomputed with "step"; a number of carries is for states that are written.

    Returns:
      The outputs, stacked on a new leading axis.

    Raises:
      StateStructureError: the body changes shape, dtype or structure of a state; the message shows both types.
      StateTraceError: the body makes a state that outlives it; make it before the loop.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.lax.map.html

    Example:
      >>> from statetransform import State, transform
      >>> n = State(0, name="n")
      >>> import jax.numpy as jnp
      >>> def f(x):
      ...     n.value = n.value + 1
      ...     return x * n.value
      >>> transform.map(f, jnp.ones(3)).tolist()
      [1.0, 2.0, 3.0]
    """
    one_by_one = functools.partial(_mapped, checkpoint=checkpoint, progress=progress)
    leaves = jax.tree.leaves(xs)
    if batch_size is None:
        return one_by_one(f, xs)
    batch = decorate(Batched, f)
    if not leaves:
        return one_by_one(batch, xs)
    n = jax.numpy.shape(leaves[0])[0]
    n_batches, rest = divmod(n, batch_size) if batch_size else (0, n)  # as in JAX, 0 is one batch of all
    tail = jax.tree.map(lambda x: x[n - rest :], xs)
    if checkpoint is not None:  # a loop of one batch, to be recomputed like the others
        last = lambda: jax.tree.map(lambda y: y[0], _mapped(batch, jax.tree.map(lambda x: x[None], tail), checkpoint))
    else:
        last = lambda: batch(tail)
    if n_batches == 0:
        return last()
    head = jax.tree.map(lambda x: x[: n - rest].reshape(n_batches, batch_size, *x.shape[1:]), xs)
    ys = one_by_one(batch, head)
    ys = jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:]), ys)
    if not rest:
        return ys
    return jax.tree.map(lambda *parts: jax.lax.concatenate(parts, 0), ys, last())


def _mapped(f: Callable[[Any], Any], xs: Any, checkpoint: Checkpoint = None, progress: Any = None) -> Any:
    options = {"length": None, "reverse": False, "unroll": 1}
    return _scan("map", f, None, (xs,), checkpoint, progress, _OVER_SLICES, **options)[1]


@boundary
@as_in(jax.lax.associative_scan)
def associative_scan(
    fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0, **options: Any
) -> Any:
    """A parallel prefix scan: :func:`jax.lax.associative_scan` of a function that reads states.

    Args:
      fn (Callable): an associative function of two pytrees like `elems`. JAX calls it directly, a number of
        times that depends only on the length; a write happens at each of these calls.
      elems (pytree): arrays with equal sizes along `axis`.
      reverse (bool): whether to scan from last to first. Default: False.
      axis (int): the axis to scan along. Default: 0.

    Returns:
      The scanned array or pytree.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.lax.associative_scan.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> import jax.numpy as jnp
      >>> transform.associative_scan(lambda a, b: a + b * w.value / 3, jnp.arange(4.0)).tolist()
      [0.0, 1.0, 3.0, 6.0]
    """
    return at_once(jax.lax.associative_scan, fn, elems, reverse=reverse, axis=axis, **options)


class NoLeadingAxisError(ValueError, IndexError):
    """JAX raises the one or the other, according to the release."""
