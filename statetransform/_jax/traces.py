"""What only the state half needs that is not public JAX: trace contexts, tracers, closing a trace and binding it."""

from __future__ import annotations

import functools
import operator
import os.path
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
import jax.extend.linear_util as lu
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import primitives
from jax.interpreters import batching

from .both import (
    _DIRECT,
    Tracer,
    _chain,
    consts_of,
    eval_jaxpr,
    is_jaxpr,
    opened,
    set_current_trace,
    take_current_trace,
    typeof,
)


@functools.cache
def concrete_array() -> type:
    """The type of what compiled functions return outside of any trace. Asking for it starts the devices."""
    with jax.ensure_compile_time_eval(), jax.transfer_guard("allow"):
        return type(jax.device_put(np.zeros(())))  # which compiles nothing


# `ref[...]` of a concrete Ref takes 0.3 ms in JAX, most of it for tracing: forty times what a compiled copy takes.


def buffer_of(ref: Any) -> Any:
    """The array that a concrete `jax.Ref` holds; None where JAX keeps it elsewhere. A later write may delete it."""
    return getattr(getattr(ref, "_refs", None), "_buf", None)


def set_buffer(ref: Any, value: Any) -> None:
    """Gives a concrete `jax.Ref` another array, as JAX does after a compiled function that wrote it.

    A Ref whose array is committed to its device, as those of newer JAX are, must not get one that is not.
    """
    before = buffer_of(ref)
    ref._refs._buf = jax.device_put(value, before.sharding) if before.committed and not value.committed else value


def on_devices(aval: Any) -> Any:
    """The type that a value has within `shard_map` if all devices see it whole."""
    return aval.update(sharding=jax.sharding.NamedSharding(jax.sharding.get_abstract_mesh(), aval.sharding.spec))


def type_text(aval: Any, short: bool = False) -> str:
    """A type as printed jaxprs have it: ``f32[3]`` if it is to be short, else ``float32[3]``.

    Shardings and memory spaces are in it where they are not the default, so no text that is made from shape and dtype
    alone will do.
    """
    return aval.str_short(short_dtypes=short) if hasattr(aval, "str_short") else str(aval)


def define_batching(primitive: Any, rule: Callable[..., Any]) -> None:
    """Gives a primitive its batching rule, the table of which is in `jax.interpreters`."""
    batching.primitive_batchers[primitive] = rule


def bind_in(trace: Any, primitive: Any, avals: Sequence[Any], **params: Any) -> list[Any]:
    """An equation without operands in a trace, whose outputs have these types.

    `bind` asks the primitive what comes out, which takes three times as long.
    """
    if hasattr(trace, "emit_eqn"):
        source = source_info_util.current()
        return list(trace.emit_eqn([], list(avals), primitive, {**params, "avals": avals}, frozenset(), source))
    with set_current_trace(trace):
        return list(primitive.bind(avals=avals, **params))


def splice(jaxpr: Any, consts: Sequence[Any], *args: Any) -> list[Any]:
    """Like `eval_jaxpr`, where a trace that stages takes in a jaxpr that another one has made.

    `eval_jaxpr` asks each primitive anew what comes out, a third of what tracing a large program costs. Here the
    equations are added as they are, as JAX itself does where it inlines a `jit`, but each keeps its source.
    Equations are bound where they have effects or are made of others by binding (`is_high` in newer releases), where a
    value is of another type than in the jaxpr (sharded in another way, say), in a trace that takes none, and within a
    name scope.
    """
    with take_current_trace() as trace:
        takes_equations = hasattr(trace, "emit_eqn") and hasattr(trace, "to_jaxpr_tracer")
    as_is = (
        takes_equations
        and not str(source_info_util.current_name_stack())
        and not any(map(operator.attrgetter("effects"), jaxpr.eqns))
        and not getattr(jaxpr, "is_high", False)
        and [*map(typeof, args)] == [var.aval for var in jaxpr.invars]
    )
    return _spliced(trace, jaxpr, consts, args) if as_is else eval_jaxpr(jaxpr, consts, *args)


def _spliced(trace: Any, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    known: dict[Any, Any] = {}
    source = source_info_util.current()
    given = lambda value: trace.to_jaxpr_tracer(value, source)
    tracer = lambda atom: given(atom.val) if isinstance(atom, jex.Literal) else known[atom]
    known.update(zip((*jaxpr.constvars, *jaxpr.invars), map(given, (*consts, *args)), strict=True))
    for eqn in jaxpr.eqns:
        avals = [var.aval for var in eqn.outvars]
        inputs = list(map(tracer, eqn.invars))
        out = trace.emit_eqn(inputs, avals, eqn.primitive, eqn.params, eqn.effects, eqn.source_info, eqn.ctx)
        known.update(zip(eqn.outvars, out, strict=True))
    return list(map(tracer, jaxpr.outvars))


trace_state = jex.get_opaque_trace_state

#: The state of a thread in which no transform is active. The evaluation trace is one for all threads.
TOP_LEVEL = trace_state()


def is_top_level() -> bool:
    """Whether no JAX transform is active in this thread."""
    return trace_state() == TOP_LEVEL


#: What calls a callback, where it is compiled and where it is not.
_CALLERS = frozenset({
    "debug_callback_impl", "pure_callback_impl", "io_callback_impl", "_callback", "_wrapped_callback",
})  # fmt: skip

_CALLERS_FILES = tuple(
    os.path.join(os.path.dirname(jax.__file__), "_src", name) for name in ("callback.py", "debugging.py")
)


def is_in_callback(within: int = 0) -> bool:
    """Whether the running code is a host callback's that JAX calls in this thread.

    It runs among the traces that go on then; nothing but the Python stack tells.

    Args:
      within: the identity of the Python frame up to which to look.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and id(frame) != within:
        if frame.f_code.co_name in _CALLERS and frame.f_code.co_filename in _CALLERS_FILES:
            return True
        frame = frame.f_back
    return False


def is_jit_disabled() -> bool:
    """Whether :func:`jax.disable_jit` asks for functions to run in Python."""
    return jax.config.jax_disable_jit  # type: ignore[attr-defined]  # defined at import, unseen by type checkers


def forget_failed_calls(jitted: Any) -> None:
    """Lets a function of :func:`jax.jit` take its fast way again, with all types for which a call has raised.

    For those JAX goes through Python at every later call, also when these succeed. Traces and programs stay.
    """
    forget = getattr(jitted, "_clear_cache", None)
    if forget is not None:  # else such calls are slower, and right
        forget()


class _Context:
    """Stands for one configuration of JAX."""

    __slots__ = ("__weakref__",)


@lu.cache
def _context(anchor: Any) -> _Context:
    return _Context()


#: JAX's caches are keyed by its value, so a function that runs with one of its own finds nothing in them.
run_of_caches: Any = jax.make_user_context(None)

# Without debug information, JAX warns.
_ANCHOR = lu.wrap_init(lambda: None, debug_info=jex.DebugInfo("cache", "statetransform", (), ()))


class ContextDict:
    """A dict per configuration of JAX (x64, matmul precision, mesh, named axes, ...), but for `run_of_caches`.

    What a trace yields depends on JAX's whole trace context. Its key is not public, but the caches of
    `jax.extend.linear_util` are keyed by it, so one of them hands out an object for each context. The dicts
    themselves are kept here, where the garbage collector can see that they refer back to their owner; but
    `jax.clear_caches()` empties them all the same.
    """

    __slots__ = ("_dicts",)

    def __init__(self) -> None:
        self.clear()

    def current(self) -> dict[Any, Any]:
        """The dict that belongs to the trace context of this moment."""
        with run_of_caches(None):
            context = _context(_ANCHOR)
        found = self._dicts.get(context)
        if found is None:
            found = self._dicts[context] = {}
        return found

    def dicts(self) -> list[dict[Any, Any]]:
        """The dicts of all contexts."""
        contexts = [context for ref in self._dicts.keyrefs() if (context := ref()) is not None]
        return [found for context in contexts if (found := self._dicts.get(context)) is not None]

    def clear(self) -> None:
        """Forgets everything, in every context."""
        self._dicts: weakref.WeakKeyDictionary[_Context, dict[Any, Any]] = weakref.WeakKeyDictionary()


def has_rule(jaxpr: Any) -> bool:
    """Whether a jaxpr, or one inside it, has a function with a derivative rule."""
    for eqn in opened(jaxpr).eqns:
        if eqn.primitive.name.startswith(("custom_jvp_call", "custom_vjp_call")):
            return True
        if any(map(has_rule, filter(is_jaxpr, jax.tree.leaves([*eqn.params.values()], is_leaf=is_jaxpr)))):
            return True
    return False


def emptied(jaxpr: Any) -> Any:
    """A jaxpr that does not hold its constants, which it is given with each evaluation."""
    return jaxpr.replace(consts=[None] * len(jaxpr.constvars)) if getattr(jaxpr, "consts", None) else jaxpr


def has_inner_consts(jaxpr: Any) -> bool:
    """Whether a jaxpr inside of this one has constants."""
    params = [value for eqn in opened(jaxpr).eqns for value in eqn.params.values()]
    inner = [*filter(is_jaxpr, jax.tree.leaves(params, is_leaf=is_jaxpr))]
    return any(map(consts_of, inner)) or any(map(has_inner_consts, inner))


def close_over_inputs(closed: Any, source: Any, avals: Sequence[Sequence[Any]], names: Sequence[str]) -> Any:
    """Turns operand-free equations into inputs of a jaxpr.

    Args:
      closed: what `jax.make_jaxpr` returned (a `ClosedJaxpr`; from JAX 0.11 on the same class as `Jaxpr`).
      source: the primitive of these equations, see `bind_in`; what they give becomes inputs, behind those that are
        there, in the order of their `position`.
      avals: the types of what is given at each position. JAX has dropped the equations that nothing uses.
      names: what to call the new inputs.

    Returns:
      The jaxpr, and the values of its constant variables.
    """
    jaxpr, consts = closed.jaxpr, [*map(_own, closed.consts)]
    given = {eqn.params["position"]: eqn.outvars for eqn in jaxpr.eqns if eqn.primitive is source}
    new = [var for i, types in enumerate(avals) for var in given.get(i) or map(jex.Var, types)]
    # The debug info names each input, so it has to follow their number.
    info = jaxpr.debug_info
    if info.arg_names is not None:
        info = info._replace(arg_names=(*info.arg_names, *names))
    eqns = [_with_own_consts(eqn) for eqn in jaxpr.eqns if eqn.primitive is not source]
    held = {"consts": consts} if hasattr(jaxpr, "consts") else {}
    return jaxpr.replace(invars=[*jaxpr.invars, *new], eqns=eqns, debug_info=info, **held), consts


def named_as(other: Any, jaxpr: Any) -> Any:
    """A jaxpr with the names that another one of the same inputs and outputs has for these."""
    return jaxpr.replace(debug_info=other.debug_info)


def _own(const: Any) -> Any:
    """A constant as an object that no cache of JAX holds.

    JAX converts the dtype of a NumPy array once, for as long as what the first conversion gave is alive: an array that
    has changed since would be seen as it was. The data are not copied.
    """
    return type(const)(np.asarray(const), const.aval) if _is_converted(const) else const


def _is_converted(const: Any) -> bool:
    """Whether a constant is a NumPy array as JAX has converted it; the class is not exported."""
    return type(const).__name__ == "TypedNdArray"


def _with_own_consts(eqn: Any) -> Any:
    """An equation whose jitted function, if it has one, holds constants that no cache of JAX holds, see `_own`."""
    if eqn.primitive is primitives.remat_p:
        eqns = [*map(_with_own_consts, (body := eqn.params["jaxpr"]).eqns)]
        is_same = all(map(operator.is_, eqns, body.eqns))
        return eqn if is_same else eqn.replace(params={**eqn.params, "jaxpr": body.replace(eqns=eqns)})
    closed = eqn.params.get("jaxpr")
    if not isinstance(closed, jex.ClosedJaxpr) or not any(map(_is_converted, closed.consts)):
        return eqn
    return eqn.replace(params={**eqn.params, "jaxpr": closed.replace(consts=[*map(_own, closed.consts)])})


def argument_names(jaxpr: Any) -> Sequence[str | None]:
    """What the function that a jaxpr was traced from calls its arguments, leaf by leaf: `x`, `tree['a']`."""
    return jaxpr.debug_info.arg_names or ()


def has_tracer(value: Any) -> bool:
    """Whether a pytree has a tracer among its leaves."""
    if isinstance(value, jax.Array):
        return isinstance(value, Tracer)
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


def belongs_to(value: Any, trace: Any) -> bool:
    """Whether `value` is a tracer of `trace`, or of one within it."""
    return isinstance(value, Tracer) and any(each is trace for each in _chain(value._trace))


def staging_trace() -> Any:
    """The innermost trace that stages, and None where functions run at once. Not to be kept."""
    with take_current_trace() as trace:
        while trace is not None and type(trace).__name__ in _DIRECT:
            trace = getattr(trace, "parent_trace", None)
        return trace


def stages(trace: Any) -> bool:
    """Whether a trace stages, or one around it."""
    return any(type(each).__name__ not in _DIRECT for each in _chain(trace))


def runs_rule_directly(kind: str, args: Any) -> bool:
    """Whether JAX runs a function with a derivative rule, or its rule, at once for these arguments.

    The innermost trace that differentiates by one of them runs the rule, also where a trace around it stages. A trace
    is asked as JAX's `process_custom_vjp_call` and `process_custom_jvp_call` ask it.

    With JAX's flag for what is coming, a function of this kind (`custom_vjp` or `custom_jvp`) is always staged.
    """
    if getattr(jax.config, f"jax_{kind}3", False):
        return False
    leaves = jax.tree.leaves(args)
    with take_current_trace() as trace:
        for each in _chain(trace):
            name = type(each).__name__
            if name not in _DIRECT:
                return False
            tag = getattr(each, "tag", None)
            own = [isinstance(leaf, Tracer) and getattr(leaf._trace, "tag", None) is tag for leaf in leaves]
            if name == "BatchTrace":
                leaves = [leaf.val if its else leaf for leaf, its in zip(leaves, own, strict=True)]
            elif name != "EvalTrace" and any(own):
                return True
    return True


def behind(tracer: Any) -> Any:
    """What a tracer of `grad` or `vmap` stands for in the trace around; None of another one."""
    return getattr(tracer, "primal", getattr(tracer, "val", None))
