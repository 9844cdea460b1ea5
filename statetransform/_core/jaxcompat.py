"""The one place that looks below JAX's documented surface, each use with its reason.

`jax.extend.core` exports the trace context (`get_opaque_trace_state`, `take_current_trace`,
`set_current_trace`) from JAX 0.10 on; the rest of the package takes them from here. Nothing here looks at a
version number: what is asked is what the object at hand can do, so that a release between two tested ones works too.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
import jax.extend.linear_util as lu
from jax.extend.core import primitives

# Exported by `jax.core`, and by no module that JAX documents.
Tracer = jax.core.Tracer
eval_jaxpr = jax.core.eval_jaxpr
trace_state = jex.get_opaque_trace_state
take_current_trace = jex.take_current_trace
set_current_trace = jex.set_current_trace

#: The state of a thread in which no transform is active. The evaluation trace is one for all threads.
TOP_LEVEL = trace_state()


def is_top_level() -> bool:
    """Whether no JAX transform is active in this thread."""
    return trace_state() == TOP_LEVEL


def is_jit_disabled() -> bool:
    """Whether :func:`jax.disable_jit` asks for functions to run in Python."""
    return jax.config.jax_disable_jit  # type: ignore[attr-defined]  # defined at import, unseen by type checkers


@functools.cache
def concrete_array() -> type:
    """The type of what compiled functions return outside of any trace. Asking for it starts the devices."""
    with jax.ensure_compile_time_eval():
        return type(jax.numpy.zeros(()))


def has_tracer(value: Any) -> bool:
    """Whether a pytree has a tracer among its leaves."""
    if isinstance(value, jax.Array):
        return isinstance(value, Tracer)
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


class _Context:
    """Stands for one configuration of JAX."""

    __slots__ = ("__weakref__",)


@lu.cache
def _context(anchor: Any) -> _Context:
    return _Context()


_NO_INFO = jex.DebugInfo("cache", "statetransform", (), ())  # without one, JAX warns


class ContextDict:
    """A dict per configuration of JAX (x64, matmul precision, mesh, named axes, ...).

    What a trace yields depends on JAX's whole trace context. Its key is not public, but the caches of
    `jax.extend.linear_util` are keyed by it, so one of them hands out an object for each context. The dicts
    themselves are kept here, where the garbage collector can see that they refer back to their owner; but
    `jax.clear_caches()` empties them all the same.
    """

    __slots__ = ("_anchor", "_dicts")

    def __init__(self) -> None:
        self.clear()

    def current(self) -> dict[Any, Any]:
        """The dict that belongs to the trace context of this moment."""
        context = _context(self._anchor)
        found = self._dicts.get(context)
        if found is None:
            found = self._dicts[context] = {}
        return found

    def clear(self) -> None:
        """Forgets everything, in every context."""
        self._anchor = lu.wrap_init(lambda: None, debug_info=_NO_INFO)
        self._dicts: weakref.WeakKeyDictionary[_Context, dict[Any, Any]] = weakref.WeakKeyDictionary()


def is_tracer_of(value: Any, trace: Any) -> bool:
    """Whether `value` is a tracer that `trace` itself made.

    Under a `vmap` trace that means "batched": an operation on unbatched values is left to the trace
    around it. No public function says to which trace a tracer belongs (`jex.find_top_trace` ignores
    its argument), so this reads the attribute.
    """
    return isinstance(value, Tracer) and value._trace is trace


def is_batched(value: Any, trace: Any) -> bool:
    """Whether `value` differs between the lanes of a `vmap` trace.

    What comes out of a function with a derivative rule of its own, or of `shard_map`, is a tracer of the trace even
    where no lane has a part of it. The dimension says which; no public function does.
    """
    return is_tracer_of(value, trace) and value.batch_dim is not None


def varying_axes(value: Any) -> frozenset[Any]:
    """The mesh axes over which a value inside `shard_map` differs; none where that is not followed."""
    aval = typeof(value)  # JAX has moved this once
    return getattr(getattr(aval, "manual_axis_type", aval), "varying", None) or getattr(aval, "vma", frozenset())


#: Traces under which a function with a derivative rule runs at once. Under any other it is staged, and its rule is
#: called when the program is differentiated. None of these classes is exported.
_DIRECT = frozenset({"EvalTrace", "JVPTrace", "LinearizeTrace", "BatchTrace"})


def _chain(trace: Any) -> Iterator[Any]:
    """A trace and those around it, from the innermost."""
    while trace is not None:
        yield trace
        trace = getattr(trace, "parent_trace", None)


def runs_directly() -> bool:
    """Whether JAX runs functions with derivative rules at once, and stages none of them."""
    with take_current_trace() as trace:
        return all(type(each).__name__ in _DIRECT for each in _chain(trace))


def lowered(value: Any) -> Any:
    """A pytree from a trace inside as the present trace sees it: without the tangents that it does not know.

    A rule runs outside of the traces that differentiate by it. The arguments of the function come to it as primals;
    this does the same for what it closes over. No public function does: `jax.lax.stop_gradient` takes away the tangents
    of the traces around as well, which second derivatives need.
    """
    with take_current_trace() as trace:
        known = {id(getattr(each, "tag", None)) for each in _chain(trace)}
    return jax.tree.map(lambda leaf: _lowered(leaf, known), value)


def _lowered(leaf: Any, known: set[int]) -> Any:
    while isinstance(leaf, Tracer) and hasattr(leaf, "primal") and id(getattr(leaf._trace, "tag", None)) not in known:
        leaf = leaf.primal
    if isinstance(leaf, Tracer) and hasattr(leaf, "batch_dim"):
        inner = _lowered(leaf.val, known)
        if inner is not leaf.val:
            return type(leaf)(leaf._trace, inner, leaf.batch_dim)  # type: ignore[call-arg]
    return leaf


def typeof(value: Any) -> Any:
    """The abstract value of an array, scalar or tracer; an abstract value is its own."""
    if isinstance(value, jax.Array):
        return value.aval  # a tenth of the time that `jax.typeof` takes
    return value if isinstance(value, jax.core.AbstractValue) else jax.typeof(value)


def close_over_inputs(
    closed: Any, is_input: Callable[[Any], bool], names: Sequence[str], n_outputs: int
) -> tuple[Any, Sequence[Any]]:
    """Turns operand-free equations into inputs of a jaxpr.

    Args:
      closed: what `jax.make_jaxpr` returned (a `ClosedJaxpr`; from JAX 0.11 on the same class as `Jaxpr`).
      is_input: tells the equations whose outputs become inputs, behind those that are there.
      names: what to call the new inputs.
      n_outputs: how many outputs to keep; those behind them only kept the new inputs alive.

    Returns:
      The jaxpr, and the values of its constant variables.
    """
    jaxpr, consts = closed.jaxpr, closed.consts
    taken = [eqn for eqn in jaxpr.eqns if is_input(eqn)]
    # The debug info names each input and output, so it has to follow their number.
    info = jaxpr.debug_info
    if info.arg_names is not None:
        info = info._replace(arg_names=(*info.arg_names, *names))
    if isinstance(info.result_paths, tuple | list):
        info = info._replace(result_paths=tuple(info.result_paths)[:n_outputs])
    jaxpr = jaxpr.replace(
        invars=[*jaxpr.invars, *[var for eqn in taken for var in eqn.outvars]],
        outvars=list(jaxpr.outvars[:n_outputs]),
        eqns=[eqn for eqn in jaxpr.eqns if not is_input(eqn)],
        debug_info=info,
    )
    return jaxpr, consts


# JAX unified `Jaxpr` and `ClosedJaxpr` in 0.11. Before, a closed jaxpr wraps an open one in `.jaxpr`.
Jaxpr = (jex.Jaxpr, jex.ClosedJaxpr)  # pyright: ignore[reportPrivateImportUsage]

# With `jax_remat3`, `checkpoint_name` does not bind `name_p` but a "high" primitive whose identity sits in a
# parameter. Both classes are private, so they are recognised by the name that a printed jaxpr shows.
_NAMING_CLASSES = frozenset({"CheckpointName", "CheckpointNameFwd"})


def is_jaxpr(value: object) -> bool:
    """Whether ``value`` is a jaxpr, open or closed."""
    return isinstance(value, Jaxpr)


def opened(jaxpr: Any) -> Any:
    """What a closed jaxpr wraps, which alone may stand in the parameters of an equation; any other jaxpr itself."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def consts_of(jaxpr: Any) -> Sequence[Any]:
    """The values of a jaxpr's constants; empty for an open jaxpr of the older releases."""
    return getattr(jaxpr, "consts", ())


def name_in_params(primitive: Any, params: Any) -> str | None:
    """The name that an application of ``checkpoint_name`` gives, in either of JAX's two encodings."""
    if primitive is primitives.name_p:
        return params["name"]
    high = params.get("_prim")
    if high is not None and type(high).__name__ in _NAMING_CLASSES:
        return high.name
    return None


def name_of(eqn: Any) -> str | None:
    """The name that an equation gives to its output, or ``None`` for any other equation.

    >>> import jax
    >>> from jax.ad_checkpoint import checkpoint_name
    >>> jaxpr = jax.make_jaxpr(lambda x: checkpoint_name(x * 2, "twice"))(1.0)
    >>> [name_of(eqn) for eqn in opened(jaxpr).eqns]
    [None, 'twice']
    """
    return name_in_params(eqn.primitive, eqn.params)


def names_held(policy: Any) -> frozenset[str]:
    """The names of values that one of JAX's own policies holds: no policy of theirs can be asked for them.

    They are the only sets of texts that such a policy refers to, be it a function or, in other releases, an object.

    >>> sorted(names_held(jax.checkpoint_policies.save_only_these_names("a", "b")))
    ['a', 'b']
    """
    if not (getattr(policy, "__module__", None) or "").startswith("jax."):
        return frozenset()
    if isinstance(policy, types.FunctionType):
        held = inspect.getclosurevars(policy).nonlocals
    else:
        held = getattr(policy, "__dict__", {})
    found: set[str] = set()
    for value in held.values():
        if callable(value):
            found |= names_held(value)
        elif isinstance(value, set | frozenset | tuple | list) and all(isinstance(name, str) for name in value):
            found |= set(value)
    return frozenset(found)


def is_remat(eqn: Any) -> bool:
    """Whether an equation is a call of ``jax.checkpoint``, in either of JAX's two encodings."""
    if eqn.primitive is primitives.remat_p:
        return True
    return type(eqn.params.get("_prim")).__name__ == "RematTraced"


def remat_params(eqn: Any) -> tuple[Any, Any]:
    """The jaxpr and the policy of a ``jax.checkpoint`` equation."""
    if eqn.primitive is primitives.remat_p:
        return eqn.params["jaxpr"], eqn.params["policy"]
    high = eqn.params["_prim"].params
    return high["jaxpr"], high["policy"]


def without_constvars(jaxpr: Any) -> tuple[Any, tuple[Any, ...]]:
    """An open jaxpr whose constants are its first inputs, and the values of these constants.

    Goes through a new trace, since `replace` on a jaxpr would also have to rewrite its debug information, whose form
    is not the same in any two releases. Re-evaluation keeps every equation's source.
    """
    consts = tuple(consts_of(jaxpr))
    if not consts:
        return opened(jaxpr), ()
    avals = [*(jax.typeof(c) for c in consts), *(v.aval for v in opened(jaxpr).invars)]
    body = opened(jaxpr)

    def call(*args: Any) -> list[Any]:
        return eval_jaxpr(body, args[: len(consts)], *args[len(consts) :])

    return opened(jax.make_jaxpr(call)(*avals)), consts
