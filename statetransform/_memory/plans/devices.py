"""What one device holds: values as the compiler partitions them.

With explicit axes of a mesh the types of values have shardings, and within `shard_map` they are those of one device.
With automatic axes the compiler decides: it is asked for the shardings of all values, given those of the arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from ... import _jax
from ..targets import Target, compile_for, mesh_of

logger = logging.getLogger("statetransform")


def is_unknown(avals: Sequence[Any], shardings: Sequence[Any]) -> bool:
    """Whether some types leave it to the compiler how values are partitioned, and their shardings are not known."""
    auto = lambda mesh: mesh is not None and AxisType.Auto in mesh.axis_types
    pairs = zip(avals, shardings, strict=True)
    return any(given is None and aval.shape and auto(mesh_of([aval])) for aval, given in pairs)


def partitioned(target: Target, flat: Any, avals: Sequence[Any], shardings: Sequence[Any]) -> Any:
    """A flat jaxpr whose types have the shardings that the compiler chooses for the values.

    Args:
      target: the devices.
      flat: the closed jaxpr.
      avals, shardings: the types of its inputs, and their shardings where these are known.

    Returns:
      The jaxpr; the same one where no sharding over several devices is given, or the compiler does not say.
    """
    if all(given is None or len(given.device_set) == 1 for given in shardings):
        return flat
    body, consts = _jax.opened(flat), _jax.consts_of(flat)
    known = dict(zip(body.invars, shardings, strict=True))
    inside = [var for eqn in body.eqns for var in eqn.outvars if _jax.is_array_type(var.aval) and var.aval.shape]

    all_of_it = _jax.part_of(body, body.invars, inside)

    def everything(*xs: Any) -> list[Any]:
        return _jax.eval_jaxpr(all_of_it, consts, *xs)

    try:
        found = compile_for(target, everything, avals, shardings).output_shardings
    except Exception as error:
        logger.info("the compiler does not say how it partitions values: %s", error)
        return flat
    if found is None:
        return flat
    known.update(zip(inside, found, strict=True))
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
