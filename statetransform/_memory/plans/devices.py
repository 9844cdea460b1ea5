"""What one device holds: values as the compiler partitions them, and compiling for the devices of a program.

With explicit axes of a mesh the types of values have shardings, and within `shard_map` they are those of one device.
With automatic axes the compiler decides: it is asked for the shardings of all values, given those of the arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from ... import _jax

logger = logging.getLogger("statetransform")


def mesh_of(avals: Sequence[Any]) -> Any:
    """The abstract mesh of some types, None if they are on one device."""
    meshes = [aval.sharding.mesh for aval in avals if getattr(aval, "sharding", None) is not None]
    return next((mesh for mesh in meshes if not mesh.empty and mesh.size > 1), None)


def is_unknown(avals: Sequence[Any], shardings: Sequence[Any]) -> bool:
    """Whether some types leave it to the compiler how values are partitioned, and their shardings are not known."""
    auto = lambda mesh: mesh is not None and AxisType.Auto in mesh.axis_types
    pairs = zip(avals, shardings, strict=True)
    return any(given is None and aval.shape and auto(mesh_of([aval])) for aval, given in pairs)


def placed(avals: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
    """Types with known shardings, given or in the types, as arguments to compile for."""
    found = []
    for aval, given in zip(avals, shardings, strict=True):
        mesh = mesh_of([aval])
        if given is None and mesh is not None and any(name is not None for name in aval.sharding.spec):
            given = NamedSharding(_concrete(mesh), aval.sharding.spec)
        found.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=given))
    return found


def _concrete(mesh: Any) -> Mesh:
    devices = np.array(jax.devices()[: mesh.size]).reshape(mesh.axis_sizes)
    return Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types)


def lowered(function: Callable[..., list[Any]], avals: Sequence[Any], shardings: Sequence[Any]) -> Any:
    """A function of arrays of some types, lowered; within `shard_map`, as each of its devices runs it."""
    mesh = mesh_of(avals)
    if mesh is None or AxisType.Manual not in mesh.axis_types:
        return jax.jit(function, keep_unused=True).lower(*placed(avals, shardings))
    axes = tuple(name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Manual)
    varying = [tuple(sorted(aval.mat.varying)) for aval in avals]
    pieces = jax.P(axes)

    def run(*xs: Any) -> list[Any]:
        given = [jax.lax.pcast(x, names, to="varying") if names else x for x, names in zip(xs, varying, strict=True)]
        return [jax.lax.expand_dims(y, (0,)) for y in function(*given)]

    def lower() -> Any:
        whole = Mesh(_concrete(mesh).devices, mesh.axis_names)
        mapped = jax.shard_map(
            run, mesh=whole, in_specs=jax.P(), out_specs=pieces, check_vma=any(varying), axis_names=set(axes)
        )
        structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        return jax.jit(mapped, keep_unused=True).lower(*structs)

    with ThreadPoolExecutor(1) as pool:  # a thread of its own, where no axis is bound
        return pool.submit(lower).result()


def partitioned(flat: Any, avals: Sequence[Any], shardings: Sequence[Any]) -> Any:
    """A flat jaxpr whose types have the shardings that the compiler chooses for the values.

    Args:
      flat: the closed jaxpr.
      avals, shardings: the types of its inputs, and their shardings where these are known.

    Returns:
      The jaxpr; the same one where no sharding is given, or the compiler does not say.
    """
    if all(given is None for given in shardings):
        return flat
    body, consts = _jax.opened(flat), _jax.consts_of(flat)
    known = dict(zip(body.invars, shardings, strict=True))
    inside = [var for eqn in body.eqns for var in eqn.outvars if _jax.is_array_type(var.aval) and var.aval.shape]

    all_of_it = _jax.part_of(body, body.invars, inside)

    def everything(*xs: Any) -> list[Any]:
        return _jax.eval_jaxpr(all_of_it, consts, *xs)

    try:
        compiled = jax.jit(everything, keep_unused=True).lower(*placed(avals, shardings)).compile()
    except Exception as error:
        logger.info("the compiler does not say how it partitions values: %s", error)
        return flat
    known.update(zip(inside, compiled.output_shardings, strict=True))
    return _with_types(flat, known)


def _with_types(flat: Any, shardings: dict[Any, Any]) -> Any:
    """A jaxpr whose variables have shardings in their types."""
    body, env = _jax.opened(flat), dict[Any, Any]()

    def of(atom: Any) -> Any:
        if isinstance(atom, jex.Literal):
            return atom
        if atom not in env:
            env[atom] = jex.Var(_typed(atom.aval, shardings.get(atom)))
        return env[atom]

    eqns = [eqn.replace(invars=list(map(of, eqn.invars)), outvars=list(map(of, eqn.outvars))) for eqn in body.eqns]
    replaced = body.replace(
        constvars=list(map(of, body.constvars)),
        invars=list(map(of, body.invars)),
        eqns=eqns,
        outvars=list(map(of, body.outvars)),
    )
    return jex.ClosedJaxpr(replaced, list(_jax.consts_of(flat)))  # pyright: ignore[reportPrivateImportUsage]


def _typed(aval: Any, sharding: Any) -> Any:
    """A type with a sharding, as on a mesh with explicit axes: only bytes are read from it."""
    if not isinstance(sharding, NamedSharding) or not getattr(aval, "shape", ()):
        return aval
    mesh = AbstractMesh(
        sharding.mesh.axis_sizes, sharding.mesh.axis_names, (AxisType.Explicit,) * len(sharding.mesh.axis_names)
    )
    spec = (*sharding.spec, *(None,) * (len(aval.shape) - len(sharding.spec)))
    return aval.update(sharding=NamedSharding(mesh, jax.P(*spec)))
