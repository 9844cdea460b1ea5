"""What both halves need that is not public JAX: the trace that is current, types, and zeros of a type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.extend.core import primitives


def varying_axes(value: Any) -> frozenset[Any]:
    """The mesh axes over which a value inside `shard_map` differs; none where that is not followed."""
    return typeof(value).mat.varying


def typeof(value: Any) -> Any:
    """The abstract value of an array, scalar or tracer; an abstract value is its own."""
    if isinstance(value, jax.Array):
        return value.aval  # a tenth of the time that `jax.typeof` takes
    return value if isinstance(value, jax.core.AbstractValue) else jax.typeof(value)


def weak(x: Any) -> Any:
    """With a weak type, which no public function gives."""
    return primitives.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None)


def zeros(aval: Any, leading: tuple[int, ...] = (), zero: Any = None) -> Any:
    """Zeros of an abstract value's type, with more axes in front; made of a scalar, if one is given.

    On a mesh with explicit axes the type has a sharding, and under `shard_map` it says over which axes the values vary.
    `jnp.zeros_like` of a type loses the sharding of keys, and all of them outside of `jax.set_mesh`.
    """
    scalar, shape = jax.lax.full((), 0, aval.dtype) if zero is None else zero, (*leading, *aval.shape)
    mesh, spec = aval.sharding.mesh, aval.sharding.spec
    # The mesh may be that of the arguments alone; what is not divided there belongs to it as well.
    is_of_arguments = jax.sharding.AxisType.Explicit in mesh.axis_types and mesh != jax.sharding.get_abstract_mesh()
    if is_of_arguments or any(name is not None for name in spec):
        with jax.sharding.use_abstract_mesh(mesh):
            sharding = jax.sharding.NamedSharding(mesh, jax.P(*[None] * len(leading), *spec))
            full = jax.lax.broadcast(scalar, shape, out_sharding=sharding)
    else:
        full = jax.lax.broadcast(scalar, shape)
    varying = tuple(sorted(aval.mat.varying - typeof(full).mat.varying))
    return jax.lax.pcast(full, varying, to="varying") if varying else full


take_current_trace = jex.take_current_trace

set_current_trace = jex.set_current_trace

# Exported by `jax.core`, and by no module that JAX documents.
eval_jaxpr = jax.core.eval_jaxpr

# JAX unified `Jaxpr` and `ClosedJaxpr` in 0.11. Before, a closed jaxpr wraps an open one in `.jaxpr`.
Jaxpr = (jex.Jaxpr, jex.ClosedJaxpr)  # pyright: ignore[reportPrivateImportUsage]


def is_jaxpr(value: object) -> bool:
    """Whether ``value`` is a jaxpr, open or closed."""
    return isinstance(value, Jaxpr)


def opened(jaxpr: Any) -> Any:
    """What a closed jaxpr wraps, which alone may stand in the parameters of an equation; any other jaxpr itself."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def consts_of(jaxpr: Any) -> Sequence[Any]:
    """The values of a jaxpr's constants; empty for an open jaxpr of the older releases."""
    return getattr(jaxpr, "consts", ())


# Exported by `jax.core`, and by no module that JAX documents.
Tracer = jax.core.Tracer


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
    return is_tracer_of(value, trace) and getattr(value, "batch_dim", None) is not None


#: Traces under which a function with a derivative rule runs at once. Under any other it is staged, and its rule is
#: called when the program is differentiated. None of these classes is exported.
_DIRECT = frozenset({"EvalTrace", "JVPTrace", "LinearizeTrace", "BatchTrace"})


def _chain(trace: Any) -> Iterator[Any]:
    """A trace and those around it, from the innermost."""
    while trace is not None:
        yield trace
        trace = getattr(trace, "parent_trace", None)


def is_differentiable(x: Any) -> bool:
    """Whether a leaf has tangents of its own type."""
    return jnp.issubdtype(x.dtype if hasattr(x, "dtype") else jnp.result_type(x), jnp.inexact)


def slice_type(x: Any) -> Any:
    """The abstract value of a step's slice of an array."""
    aval = typeof(x)
    return jex.mapped_aval(aval.shape[0], 0, aval)


def zeros_like(x: Any) -> Any:
    """Zeros in the kind of memory that `x` is in; :func:`jax.numpy.zeros_like` fails for host memory."""
    space = typeof(x).memory_space
    if space != jax.memory.Space.Host:
        return jnp.zeros_like(x)
    return jax.device_put(zeros(typeof(x)), space)


def zero_tangent(x: Any) -> Any:
    """The zero among the tangents of `x`."""
    return zeros_like(x) if is_differentiable(x) else np.zeros(np.shape(x), jax.dtypes.float0)


def below_tangents(x: Any) -> Any:
    """The array or tracer whose tangents a tracer carries; anything else is itself."""
    while isinstance(x, Tracer) and hasattr(x, "primal"):
        x = x.primal
    return x


def is_there(device: Any) -> bool:
    """Whether programs run on a device: those of a topology are only for compiling, which no public name says."""
    return getattr(device.client, "runtime_type", None) != "compile_only_runtime"


def sharding_of(x: Any) -> Any:
    """The sharding of an array on a mesh, or on a device that is not there; None if it is on one that is.

    None for a tracer, too, which does not say it.
    """
    x = below_tangents(x)
    sharding = None if isinstance(x, Tracer) else getattr(x, "sharding", None)
    if isinstance(sharding, jax.sharding.NamedSharding):
        if not isinstance(sharding.mesh, jax.sharding.Mesh):
            return None
        if sharding.mesh.size > 1:
            return sharding
    if isinstance(x, jax.Array) or not isinstance(sharding, jax.sharding.Sharding):
        return None  # arrays are on devices that are there
    return None if is_there(next(iter(sharding.device_set))) else sharding
