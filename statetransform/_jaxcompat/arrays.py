"""Arrays and their types: on meshes, in references, without tangents."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend.core import primitives
from jax.interpreters import ad

try:
    from jax._src.lax.lax import empty2
except ImportError:
    empty2 = None


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


def barrier(tree: Any) -> Any:
    """The same values behind a :func:`jax.lax.optimization_barrier`, with the same types.

    In `shard_map`, the barrier of JAX 0.10 makes all of its operands vary if one does: there, each kind gets its own.
    """
    values, treedef = jax.tree.flatten(tree)
    varying = [varying_axes(x) for x in values]
    found = list(jax.lax.optimization_barrier(values))
    if [varying_axes(x) for x in found] != varying:
        for kind in set(varying):
            which = [i for i, its in enumerate(varying) if its == kind]
            for i, x in zip(which, jax.lax.optimization_barrier([values[i] for i in which]), strict=True):
                found[i] = x
    return treedef.unflatten(found)


def varying_axes(value: Any) -> frozenset[Any]:
    """The mesh axes over which a value inside `shard_map` differs; none where that is not followed."""
    return typeof(value).mat.varying


def on_devices(aval: Any) -> Any:
    """The type that a value has within `shard_map` if all devices see it whole."""
    return aval.update(sharding=jax.sharding.NamedSharding(jax.sharding.get_abstract_mesh(), aval.sharding.spec))


def typeof(value: Any) -> Any:
    """The abstract value of an array, scalar or tracer; an abstract value is its own."""
    if isinstance(value, jax.Array):
        return value.aval  # a tenth of the time that `jax.typeof` takes
    return value if isinstance(value, jax.core.AbstractValue) else jax.typeof(value)


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


# `jnp.zeros(...)` that is moved to the host is allocated on the device first. JAX's own `scan` makes the arrays for
# outputs in host memory as follows: from a scalar that is in host memory by its type alone.


def host_room(aval: Any, rows: int) -> Any:
    """An array of such values in host memory, `[rows, *aval.shape]`, whose content means nothing."""
    space, varying = jax.memory.Space.Host, tuple(sorted(aval.mat.varying))
    zero = jnp.zeros((), aval.dtype)
    scalar = jax.device_put(zero, space) if empty2 is None else empty2(aval.dtype, memory_space=space)
    return zeros(aval, (rows,), jax.lax.pcast(scalar, varying, to="varying") if varying else scalar)


def is_array_type(aval: Any) -> bool:
    """Whether an abstract value is that of an array, and not of a reference."""
    return isinstance(aval, jax.core.ShapedArray)


def weak(x: Any) -> Any:
    """With a weak type, which no public function gives."""
    return primitives.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None)


def is_zero_tangent(dot: Any) -> bool:
    """Whether a tangent or cotangent is zero for certain, in a rule of a primitive or with `symbolic_zeros`.

    JAX hands over instances of a class whose instances answer as arrays do, so only `type` tells them.
    """
    is_symbolic = type(dot) in (ad.Zero, jax.custom_derivatives.SymbolicZero)
    return is_symbolic or getattr(dot, "dtype", None) == jax.dtypes.float0


def symbolic_zero(primal: Any) -> Any:
    """The tangent of a value that does not move, as a rule of `custom_jvp` may return it."""
    return jax.custom_derivatives.SymbolicZero(typeof(primal).to_tangent_aval())


def type_text(aval: Any, short: bool = False) -> str:
    """A type as printed jaxprs have it: ``f32[3]`` if it is to be short, else ``float32[3]``.

    Shardings and memory spaces are in it where they are not the default, so no text that is made from shape and dtype
    alone will do.
    """
    return aval.str_short(short_dtypes=short) if hasattr(aval, "str_short") else str(aval)
