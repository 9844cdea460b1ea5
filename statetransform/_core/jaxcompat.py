"""The one place that looks below JAX's documented surface, each use with its reason.

`jax.extend.core` exports the trace context (`get_opaque_trace_state`, `take_current_trace`,
`set_current_trace`) from JAX 0.10 on; the rest of the package takes them from here. Nothing here looks at a
version number: what is asked is what the object at hand can do, so that a release between two tested ones works too.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os.path
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.extend.core as jex
import jax.extend.linear_util as lu
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import primitives
from jax.interpreters import ad, batching, mlir

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


def on_devices(aval: Any) -> Any:
    """The type that a value has within `shard_map` if all devices see it whole."""
    return aval.update(sharding=jax.sharding.NamedSharding(jax.sharding.get_abstract_mesh(), aval.sharding.spec))


#: Traces under which a function with a derivative rule runs at once. Under any other it is staged, and its rule is
#: called when the program is differentiated. None of these classes is exported.
_DIRECT = frozenset({"EvalTrace", "JVPTrace", "LinearizeTrace", "BatchTrace"})


def _chain(trace: Any) -> Iterator[Any]:
    """A trace and those around it, from the innermost."""
    while trace is not None:
        yield trace
        trace = getattr(trace, "parent_trace", None)


def staging_trace() -> Any:
    """The innermost trace that stages, and None where functions run at once. Not to be kept."""
    with take_current_trace() as trace:
        return next((each for each in _chain(trace) if type(each).__name__ not in _DIRECT), None)


def stages(trace: Any) -> bool:
    """Whether a trace stages, or one around it."""
    return any(type(each).__name__ not in _DIRECT for each in _chain(trace))


def runs_directly() -> bool:
    """Whether JAX runs functions with derivative rules at once, and stages none of them."""
    with take_current_trace() as trace:
        return not stages(trace)


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
    jaxpr, consts = closed.jaxpr, closed.consts
    given = {eqn.params["position"]: eqn.outvars for eqn in jaxpr.eqns if eqn.primitive is source}
    new = [var for i, types in enumerate(avals) for var in given.get(i) or map(jex.Var, types)]
    # The debug info names each input, so it has to follow their number.
    info = jaxpr.debug_info
    if info.arg_names is not None:
        info = info._replace(arg_names=(*info.arg_names, *names))
    eqns = [eqn for eqn in jaxpr.eqns if eqn.primitive is not source]
    return jaxpr.replace(invars=[*jaxpr.invars, *new], eqns=eqns, debug_info=info), consts


def zeros(aval: Any, leading: tuple[int, ...] = ()) -> Any:
    """Zeros of an abstract value's type, with more axes in front.

    On a mesh with explicit axes the type has a sharding, and under `shard_map` it says over which axes the values vary.
    `jnp.zeros_like` of a type loses the sharding of keys, and all of them outside of `jax.set_mesh`.
    """
    scalar, shape, spec = jax.lax.full((), 0, aval.dtype), (*leading, *aval.shape), aval.sharding.spec
    if any(name is not None for name in spec):
        mesh = aval.sharding.mesh
        with jax.sharding.use_abstract_mesh(mesh):  # which may be the mesh of the arguments alone
            sharding = jax.sharding.NamedSharding(mesh, jax.P(*[None] * len(leading), *spec))
            full = jax.lax.broadcast(scalar, shape, out_sharding=sharding)
    else:
        full = jax.lax.broadcast(scalar, shape)
    varying = tuple(sorted(aval.mat.varying - typeof(full).mat.varying))
    return jax.lax.pcast(full, varying, to="varying") if varying else full


def type_of_carry(value: Any) -> tuple[Any, ...]:
    """What a loop's carry has to keep: shape and dtype, and what `zeros` says of meshes; not the weak type."""
    aval = typeof(value)
    if not isinstance(aval, jax.core.ShapedArray):
        return (aval,)
    return aval.shape, aval.dtype, aval.sharding.spec, aval.mat.varying


def weak(x: Any) -> Any:
    """With a weak type, which no public function gives."""
    return primitives.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None)


def is_zero_tangent(dot: Any) -> bool:
    """Whether a tangent is zero for certain, in a rule of `jax.custom_jvp` with `symbolic_zeros`.

    JAX hands over instances of a class whose instances answer as arrays do, so only `type` tells them.
    """
    return type(dot) is jax.custom_derivatives.SymbolicZero or getattr(dot, "dtype", None) == jax.dtypes.float0


def residuals_of(pull: Callable[..., Any]) -> tuple[list[Any], Any]:
    """The residuals that a function of :func:`jax.vjp` holds, and the treedef that makes it out of others.

    It is a pytree, which is documented; that its leaves are the residuals and nothing else is not.
    """
    return jax.tree.flatten(pull)


def part_of(jaxpr: Any, invars: Sequence[Any], outvars: Sequence[Any]) -> Any:
    """The part of a jaxpr that computes some of its variables out of some of its inputs.

    `jax.interpreters.partial_eval.dce_jaxpr` keeps only outputs that the jaxpr has; these need not be among them.
    """
    needed, eqns = set(outvars), []
    for eqn in reversed(jaxpr.eqns):
        if needed.intersection(eqn.outvars):
            eqns.append(eqn)
            needed.update(v for v in eqn.invars if isinstance(v, jex.Var))
    names = tuple(f"const {i}" for i in range(len(invars)))
    info = jaxpr.debug_info._replace(arg_names=names, result_paths=None)
    effects = set().union(*[eqn.effects for eqn in eqns])
    return jaxpr.replace(invars=list(invars), outvars=list(outvars), eqns=eqns[::-1], debug_info=info, effects=effects)


def is_zero(value: Any) -> bool:
    """Whether a tangent or cotangent in the rules of a primitive is zero for certain."""
    return type(value) is ad.Zero or getattr(value, "dtype", None) == jax.dtypes.float0


def define_batching(primitive: Any, rule: Callable[..., Any]) -> None:
    """Gives a primitive its batching rule, the table of which is in `jax.interpreters`."""
    batching.primitive_batchers[primitive] = rule


def define(
    primitive: Any,
    *,
    run: Callable[..., Any],
    types: Callable[..., Any],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any],
    batch: Callable[..., Any],
) -> None:
    """Gives a primitive with several outputs its rules, whose tables are in `jax.interpreters`.

    Args:
      primitive: the primitive.
      run: evaluates it.
      types: its abstract outputs.
      jvp: its outputs and their tangents; None where JAX has a symbolic zero, in and out.
      transpose: the cotangents of its operands; None for zero, in and out.
      batch: `batch(lanes, typed, operands, axes, **params)`, where `lanes` are keyword arguments of :func:`jax.vmap`,
        and `typed` gives the abstract value of all lanes together, along a leading axis, out of that of one.
    """

    def jvp_rule(primals: Sequence[Any], dots: Sequence[Any], **params: Any) -> Any:
        out, moved = jvp(primals, [None if is_zero(dot) else dot for dot in dots], **params)
        return out, [
            ad.Zero(typeof(y).to_tangent_aval()) if dot is None else dot for y, dot in zip(out, moved, strict=True)
        ]

    def transpose_rule(cotangents: Sequence[Any], *operands: Any, **params: Any) -> Any:
        return transpose([None if is_zero(ct) else ct for ct in cotangents], *operands, **params)

    def batch_rule(axis: Any, operands: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
        if all(operand_axis is None for operand_axis in axes):
            out = primitive.bind(*operands, **params)
            return out, [None] * len(out)
        lanes = {"axis_size": axis.size, "axis_name": axis.name, "spmd_axis_name": axis.spmd_name}
        typed = lambda aval: jex.unmapped_aval(axis.size, 0, aval, axis.explicit_mesh_axis)
        return batch(lanes, typed, operands, axes, **params)

    primitive.multiple_results = True
    primitive.def_impl(run)
    primitive.def_abstract_eval(types)
    ad.primitive_jvps[primitive] = jvp_rule
    ad.primitive_transposes[primitive] = transpose_rule
    batching.fancy_primitive_batchers[primitive] = batch_rule
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))


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

    call.__name__ = function_of(jaxpr)[0] or call.__name__
    return opened(jax.make_jaxpr(call)(*avals)), consts


def run(jaxpr: Any, *args: Any) -> list[Any]:
    """The outputs of a jaxpr, closed or open and without constants. Each equation keeps its source."""
    return eval_jaxpr(opened(jaxpr), consts_of(jaxpr), *args)


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
        and not any(eqn.effects for eqn in jaxpr.eqns)
        and not getattr(jaxpr, "is_high", False)
        and all(typeof(arg) == var.aval for arg, var in zip(args, jaxpr.invars, strict=True))
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


def bind(primitive: Any, args: Sequence[Any], params: Any) -> list[Any]:
    """Applies a primitive with the parameters that its equations have.

    The parameters in an equation are not those of `bind` for functions with rules of their own, whose jaxprs have to
    become callables again; only the primitive knows how, and JAX's interpreters ask it by this method.
    """
    out = primitive.bind(*args, **primitive.get_bind_params(params))
    return list(out) if primitive.multiple_results else [out]


def bind_name(value: Any, name: str) -> Any:
    """A name for one array, in the encoding that does not depend on `jax_remat3`, as `checkpoint_name` does."""
    return primitives.name_p.bind(value, name=name)


def bind_remat(jaxpr: Any, args: Sequence[Any], prevent_cse: bool | tuple[bool, ...], policy: Any) -> list[Any]:
    """The checkpoint of an open jaxpr without constants, in the encoding that does not depend on `jax_remat3`.

    `jax.checkpoint` asks a policy about other primitives when the flag is set, and honours fewer policies.
    """
    params = {"jaxpr": jaxpr, "prevent_cse": prevent_cse, "differentiated": False, "policy": policy}
    return list(primitives.remat_p.bind(*args, **params))


@contextlib.contextmanager
def in_place_of(eqn: Any, caller: Any = None) -> Iterator[None]:
    """What is bound in this context has the source, the name scopes and the configuration of an equation.

    Args:
      eqn: the equation.
      caller: another equation, whose source to give instead. JAX traces its own functions once, so that the equations
        in them have the stack of the first call.

    The interpreters that JAX exports take over the source, but cannot be told what to do with an equation.
    """
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    traceback = (eqn if caller is None else caller).source_info.traceback
    with source_info_util.user_context(traceback, name_stack=stack), eqn.ctx.manager:
        yield


def name_scopes(eqn: Any) -> str:
    """The name scopes of an equation, as profiles show them."""
    return str(eqn.source_info.name_stack)


class UserFrame(NamedTuple):
    """One line of a call stack; `column` is None where it is not known."""

    file: str
    line: int
    column: int | None
    function: str


_FRAME = re.compile(r"(?P<file>.*?):(?P<line>\d+)(?::(?P<column>\d+))? \((?P<function>.*)\)")


def user_frames(eqn: Any, at_most: int) -> list[UserFrame]:
    """The innermost lines that led to an equation, innermost first, without those of JAX and of Python's library.

    JAX exports the stack as text only, so this reads the text.
    """
    lines = source_info_util.summarize(eqn.source_info, num_frames=at_most).split("\n")
    return [frame for line in reversed(lines) if (frame := _frame(line))]  # JAX prints the outermost line first


@functools.lru_cache(maxsize=4096)
def _frame(text: str) -> UserFrame | None:
    match = _FRAME.fullmatch(text)
    if match is None:
        return None
    column = int(match["column"]) if match["column"] else None
    return UserFrame(match["file"], int(match["line"]), column, match["function"])


def function_of(jaxpr: Any) -> tuple[str | None, str]:
    """The name of the function that a jaxpr was traced from, and its file; empty where JAX does not say."""
    info = getattr(opened(jaxpr), "debug_info", None)
    where = str(getattr(info, "func_src_info", None) or "")
    return getattr(info, "func_name", None), where.partition(" at ")[2].rpartition(":")[0]


def argument_names(jaxpr: Any) -> Sequence[str | None]:
    """What the function that a jaxpr was traced from calls its arguments, leaf by leaf: `x`, `tree['a']`."""
    return jaxpr.debug_info.arg_names or ()


def plain_type(aval: Any) -> Any:
    """The abstract value of an array of the same shape and dtype, on whatever device."""
    return jax.core.ShapedArray(aval.shape, aval.dtype)


def type_text(aval: Any, short: bool = False) -> str:
    """A type as printed jaxprs have it: ``f32[3]`` if it is to be short, else ``float32[3]``.

    Shardings and memory spaces are in it where they are not the default, so no text that is made from shape and dtype
    alone will do.
    """
    return aval.str_short(short_dtypes=short) if hasattr(aval, "str_short") else str(aval)
