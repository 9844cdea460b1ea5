"""Compiling a function of arrays for a target, and reading what it needs.

A compiler that refuses a program for want of memory has said that it needs more than there is: that is an answer.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from ... import _jax
from ..programs.sizes import BINARY, format_bytes
from .target import Target

logger = logging.getLogger("statetransform")

# Of the CPU's compiler: the same temporaries and operations in half the time.
_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_NOT_TUNED = {"xla_gpu_autotune_level": 0}  # there is no card to try kernels on


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled program, as far as it is known.

    Attributes:
      program: the `jax.stages.Compiled`; None if the compiler refused it for want of memory.
      temporary: temporary bytes on one device; None where the backend does not say. Of a refused program, the
        compiler's figure without arguments and outputs.
      argument, output: bytes of these on one device.
      total: what the compiler said that a refused program needs, with arguments and outputs.
      flops, bytes_accessed, seconds: the compiler's counts and its estimate of time; None where it makes none.
    """

    program: Any
    temporary: int | None
    argument: int | None
    output: int | None
    total: int | None = None
    flops: float | None = None
    bytes_accessed: float | None = None
    seconds: float | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the compiler said that the device has not enough memory."""
        return self.program is None

    @property
    def output_shardings(self) -> Any:
        """Those that the compiler chose; None if it refused the program."""
        return None if self.program is None else self.program.output_shardings

    @property
    def notes(self) -> list[str]:
        """What to say of a program that the compiler refused, in reports."""
        if self.total is None:
            return []
        return [f"The compiler refuses the program, which needs {format_bytes(self.total)} of the device in all."]

    def fits(self, budget: int) -> bool:
        """Whether the temporary bytes are known to be within a budget."""
        return not self.is_refused and self.temporary is not None and self.temporary <= budget


def mesh_of(avals: Sequence[Any]) -> Any:
    """The abstract mesh of some types, None if they are on one device."""
    meshes = [aval.sharding.mesh for aval in avals if getattr(aval, "sharding", None) is not None]
    return next((mesh for mesh in meshes if not mesh.empty and mesh.size > 1), None)


def placed(target: Target, avals: Sequence[Any], shardings: Sequence[Any] = ()) -> list[Any]:
    """Types with known shardings, given or in the types, as arguments to compile for a target."""
    given = [*shardings, *[None] * (len(avals) - len(shardings))]
    found = [_struct(target, aval, sharding) for aval, sharding in zip(avals, given, strict=True)]
    if target.is_here or not found or any(some.sharding is not None for some in found):
        return found
    return [some.update(sharding=target.sharding) for some in found]


def _struct(target: Target, aval: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    own = getattr(aval, "sharding", None)
    if sharding is None and isinstance(own, NamedSharding) and not own.mesh.empty:
        is_said = any(name is not None for name in own.spec) or (own.mesh.size == 1 and not target.is_here)
        sharding = own if is_said else None
    if isinstance(sharding, NamedSharding):  # perhaps of the same mesh on other devices
        sharding = NamedSharding(target.concrete(sharding.mesh), sharding.spec)
    weak_type = getattr(aval, "weak_type", False)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=weak_type)


def lower_for(
    target: Target, function: Callable[..., list[Any]], avals: Sequence[Any], shardings: Sequence[Any] = ()
) -> Any:
    """A function of arrays of some types, lowered; within `shard_map`, as each of its devices runs it."""
    mesh = mesh_of(avals)
    if mesh is None or AxisType.Manual not in mesh.axis_types:
        return jax.jit(function, keep_unused=True).lower(*placed(target, avals, shardings))
    axes = tuple(name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Manual)
    varying = [tuple(sorted(_jax.varying_axes(aval))) for aval in avals]
    pieces = jax.P(axes)

    def run(*xs: Any) -> list[Any]:
        given = [jax.lax.pcast(x, names, to="varying") if names else x for x, names in zip(xs, varying, strict=True)]
        return [jax.lax.expand_dims(y, (0,)) for y in function(*given)]

    def lower() -> Any:
        whole = Mesh(target.concrete(mesh).devices, mesh.axis_names)
        mapped = jax.shard_map(
            run, mesh=whole, in_specs=jax.P(), out_specs=pieces, check_vma=any(varying), axis_names=set(axes)
        )
        sharding = None if target.is_here else NamedSharding(whole, jax.P())
        structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding) for aval in avals]
        return jax.jit(mapped, keep_unused=True).lower(*structs)

    with ThreadPoolExecutor(1) as pool:  # a thread of its own, where no axis is bound
        return pool.submit(lower).result()


def compile_for(
    target: Target,
    function: Callable[..., list[Any]],
    avals: Sequence[Any],
    shardings: Sequence[Any] = (),
    *,
    is_fast: bool = False,
) -> Compiled:
    """Compiles a function of arrays of some types for a target.

    Args:
      target: the devices.
      function: from arrays to a list of arrays.
      avals: the types of its arguments; those on meshes are compiled for these.
      shardings: those of the arguments, None where they are not known or in the types.
      is_fast: with fewer optimizations, if the compiler needs as many bytes then.

    Raises:
      Exception: what JAX raises for a function that cannot be compiled by itself, but not for want of memory.
    """
    lowered = lower_for(target, function, avals, shardings)
    return compiled_by(target, lowered, is_fast)


def compiled_by(target: Target, lowered: Any, is_fast: bool = False) -> Compiled:
    """What a compiler says of a lowered program."""
    try:
        return _read(_compiled(target, lowered, is_fast))
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith("RESOURCE_EXHAUSTED"):
            raise
        logger.info("the compiler for %s refuses a program for want of memory: %s", target, error)
        return _refused(target, lowered, str(error))


def _compiled(target: Target, lowered: Any, is_fast: bool) -> Any:
    if target.is_here:
        if is_fast and target.platform == "cpu":
            try:
                return lowered.compile(compiler_options=_FAST)
            except Exception as error:  # a release may not know the options
                logger.info("the compiler does not know its own options: %s", error)
        return lowered.compile()
    with _jax.without_cache():  # JAX cannot read such programs back
        return lowered.compile(compiler_options=_NOT_TUNED if target.platform == "gpu" else None)


def _read(program: Any) -> Compiled:
    memory = program.memory_analysis()
    size = lambda what: None if memory is None else int(getattr(memory, f"{what}_size_in_bytes"))
    try:
        counts = program.cost_analysis() or {}
    except Exception:  # not every backend has one
        counts = {}
    seconds = counts.get("optimal_seconds")
    return Compiled(
        program,
        size("temp"),
        size("argument"),
        size("output"),
        flops=counts.get("flops"),
        bytes_accessed=counts.get("bytes accessed"),
        # The compiler of TPUs counts an operation that it cannot estimate as -1.
        seconds=None if seconds is None or seconds < 0 else seconds,
    )


def _refused(target: Target, lowered: Any, message: str) -> Compiled:
    """What is known of a program from the error of its compiler: all that it needs, arguments and outputs included."""
    leaves = lambda tree: jax.tree.leaves(tree, is_leaf=lambda some: hasattr(some, "shape"))
    argument, output = (sum(map(_bytes_on_device, leaves(some))) for some in (lowered.args_info, lowered.out_info))
    said = re.search(r"required for HLO temporaries \(([\d.]+)([KMGT]?)B?\)|Used ([\d.]+)([KMGT]?)B? of", message)
    total = (target.memory or 0) + 1
    if said is not None:
        number, unit = said.group(1, 2) if said.group(1) else said.group(3, 4)
        total = max(total, int(float(number) * BINARY[unit]))
    return Compiled(None, max(total - argument - output, 0), argument, output, total=total)


def _bytes_on_device(some: Any) -> int:
    sharding = getattr(some, "sharding", None)
    shape = some.shape if sharding is None else sharding.shard_shape(some.shape)
    return math.prod(shape) * np.dtype(jax.dtypes.canonicalize_dtype(some.dtype)).itemsize
