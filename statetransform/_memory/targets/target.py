"""Which devices a program is compiled for: those that JAX runs on, or some that are not there.

A target is found by what the user says, or by where arguments are. In a trace, types say it: the mesh of an array's
type has the kind of its devices, from which the devices of a target that was made before are found.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import operator
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding

from ... import _jax
from .cards import CARDS, TPU_MEMORY, Card
from .compilers import compiler_of, jaxlib_version, nvidia_devices, tpu_devices


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices to compile for. Make one with :func:`statetransform.target`.

    A program that is compiled for devices that are not there cannot run; its bytes are known.

    Attributes:
      name: of the card or of the topology.
      devices: JAX's devices, to be used in meshes and shardings.
      memory: bytes of one device; None if they are not known.
      card: the numbers of an NVIDIA GPU; None for other devices.
      is_here: whether these are the devices that JAX runs on by default.
    """

    name: str
    devices: tuple[Any, ...] = dataclasses.field(repr=False)
    memory: int | None
    card: Card | None = dataclasses.field(default=None, repr=False)
    is_here: bool = dataclasses.field(default=False, repr=False)

    def __str__(self) -> str:
        return f"{len(self.devices)} x {self.name}" if self.card and len(self.devices) > 1 else self.name

    def __reduce__(self) -> Any:  # devices that are not there are made anew
        if self.is_here:
            return _here, ()
        return (target, (self.card, len(self.devices))) if self.card else (target, (self.name,))

    @property
    def notes(self) -> list[str]:
        """What figures of its compiler do not know, for reports."""
        if self.is_here:
            return []
        tuned = "which kernels autotuning chooses and what workspace they take, nor " if self.platform == "gpu" else ""
        not_known = f"The figures do not know {tuned}how an allocator divides the memory."
        return [f"Compiled for {self}, which is not there. {not_known}"]

    @property
    def platform(self) -> str:
        """What JAX calls the backend: "cpu", "gpu" or "tpu"."""
        return self.devices[0].platform

    @property
    def sharding(self) -> NamedSharding:
        """Of an array on the first device, for `jax.ShapeDtypeStruct(shape, dtype, sharding=...)`."""
        return NamedSharding(self.mesh((1,), ("device",)), jax.P())

    def mesh(self, shape: Sequence[int], names: Sequence[str]) -> Mesh:
        """A mesh of the devices, with automatic axes.

        Args:
          shape: how many devices there are along each axis; fewer than there are in all may be taken.
          names: of the axes.

        Raises:
          ValueError: there are not so many devices.
        """
        if (n := math.prod(shape)) > len(self.devices):
            raise ValueError(f"target: a mesh of {n} devices, {tuple(shape)}, of {self}, which has {len(self.devices)}")
        types = (AxisType.Auto,) * len(tuple(shape))
        if n < len(self.devices) or self.card is not None:
            return Mesh(np.array(self.devices[:n]).reshape(tuple(shape)), tuple(names), axis_types=types)
        return jax.make_mesh(tuple(shape), tuple(names), axis_types=types, devices=self.devices)

    def concrete(self, mesh: Any) -> Mesh:
        """A mesh, which may be an abstract one or one of other devices, on these devices."""
        if isinstance(mesh, Mesh) and (self.is_here or mesh.devices.flat[0] in self.devices):
            return mesh
        found = self if mesh.size <= len(self.devices) else self._with(mesh.size)
        devices = np.array(found.devices[: mesh.size]).reshape(mesh.axis_sizes)
        return Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types)

    def _with(self, count: int) -> Target:
        """The target of the same kind that has so many devices."""
        kind = self.devices[0].device_kind
        known = [some for (name, _), some in _known.items() if name == kind and len(some.devices) >= count]
        if known:
            return min(known, key=lambda some: len(some.devices))
        if self.card is None:
            raise ValueError(f"target: a mesh of {count} devices on {self}, which has {len(self.devices)}")
        return target(self.card, count)

    @property
    def fingerprint(self) -> str:
        """The devices, their compiler and its settings, in a text that is the same in every process."""
        first, numbers = self.devices[0], "" if self.card is None else self.card.text()
        flags = os.environ.get("XLA_FLAGS", ""), jax.config.read("jax_disable_most_optimizations")
        return f"{first.platform} {first.device_kind} {len(self.devices)} {compiler_of(first)} {flags} {numbers}"


#: Those that were made, by kind and number of devices.
_known: dict[tuple[str, int], Target] = {}


def target(name: str | Card, count: int = 1) -> Target:
    """A GPU or TPU to compile for, without the device.

    The real compilers of NVIDIA GPUs and of TPUs run on a machine that has neither, and say how many bytes a program
    needs. They are extras: `pip install 'statetransform[nvidia]'` and `'statetransform[tpu]'`, for Linux.

    Their figures do not know what autotuning changes, which may take another workspace, nor how an allocator divides
    the memory. A program that is compiled for a target does not run.

    Args:
      name: an NVIDIA GPU, one of "A100", "H100", "H200", "B200", "L4", "RTX 4090" and "T4"; or a topology of TPUs by
        its own name, such as "v5e:2x2" or "v5p:2x2x1". For another GPU, a card with its numbers:
        `dataclasses.replace(st.target("H100").card, name="H100 NVL", memory=94 * 2**30)`.
      count: how many GPUs one host has. The name of a topology says how many TPUs there are.

    Returns:
      A :class:`Target`, with its `name`, `devices`, `memory` (bytes of one device), `sharding` (of one device) and
      `mesh(shape, names)`. Equal names and counts give the same devices.

    Raises:
      ValueError: there is no such card or topology.
      ImportError: the compiler is not installed, or is for another version of JAX.
      RuntimeError: the environment keeps JAX from loading it; the error says what to set.

    References:
      https://docs.jax.dev/en/latest/aot.html#ahead-of-time-lowering-and-compilation

    Example:
      >>> import jax, jax.numpy as jnp, statetransform as st
      >>> h100 = st.target("H100")  # doctest: +SKIP
      >>> x = jax.ShapeDtypeStruct((8192, 8192), jnp.float32, sharding=h100.sharding)  # doctest: +SKIP
      >>> st.inspect.cost(lambda x: jnp.sin(x @ x).sum(), x).temporary_bytes  # doctest: +SKIP
      268435456
    """
    card = name if isinstance(name, Card) else CARDS.get(name) if isinstance(name, str) else None
    if card is None and not isinstance(name, str):
        raise TypeError(f"target: a name or a card, not {name!r} of type {type(name).__name__}")
    count = operator.index(count)
    if count < 1:
        raise ValueError(f"target: `count` is how many cards there are, not {count}")
    if card is not None:
        if CARDS.get(card.name) != card and any(card.kind == some.kind for some in CARDS.values()):
            card = dataclasses.replace(card, kind=card.name)  # types in a trace tell cards apart by it
        return _of_card(card, count)
    if ":" not in str(name) and "=" not in str(name):
        raise ValueError(_unknown(str(name)))
    found = _of_topology(str(name))
    if count != 1:
        raise ValueError(
            f"target: the name of a topology says how many TPUs there are: {name!r} has {len(found.devices)}. Leave "
            f"out count={count}."
        )
    return found


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name.upper(), CARDS, n=1)
    meant = f"Did you mean {close[0]!r}? " if close else ""
    return (
        f"target: no card is called {name!r}. {meant}The cards are {', '.join(map(repr, CARDS))}. TPUs go by the names "
        "of their topologies: 'v5e:2x2', 'v6e:2x4', 'v5p:2x2x1'. For another GPU, give the card with its numbers: "
        "`dataclasses.replace(st.target('H100').card, name=...)`."
    )


@functools.cache
def _of_card(card: Card, count: int) -> Target:
    return _noted(Target(card.name, nvidia_devices(card.name, card.text(), count), card.memory, card))


@functools.cache
def _of_topology(name: str) -> Target:
    devices = tpu_devices(name)
    return _noted(Target(name, devices, TPU_MEMORY.get(devices[0].device_kind)))


def _noted(found: Target) -> Target:
    _known[found.devices[0].device_kind, len(found.devices)] = found
    return found


def _here() -> Target:
    return _of_backend(tuple(jax.devices()))


@functools.cache
def _of_backend(devices: tuple[Any, ...]) -> Target:
    stats = devices[0].memory_stats() if devices[0].process_index == jax.process_index() else None
    return Target(devices[0].platform, devices, (stats or {}).get("bytes_limit"), is_here=True)


def _of_devices(devices: Sequence[Any]) -> Target:
    """The target that has some devices. A mesh has them in an order of its own: JAX follows the wires between TPUs."""
    for some in (_here(), *_known.values()):
        if set(devices) <= set(some.devices):
            return some
    kind = devices[0].device_kind
    return _noted(Target(kind, tuple(devices), TPU_MEMORY.get(kind)))


def _given(given: Any) -> Target:
    """What a user gives as `target=`.

    Raises:
      TypeError: it is neither a target, nor a name, nor devices.
    """
    if isinstance(given, Target):
        return given
    if isinstance(given, str | Card):
        return target(given)
    devices = tuple(np.ravel(np.array(getattr(given, "devices", given), dtype=object)))
    if not devices or not all(isinstance(device, jax.Device) for device in devices):
        raise TypeError(
            f'`target=` is a target, its name or its devices, not {given!r}. Write for example target="H100" or '
            'target=st.target("H100", count=8).'
        )
    return _of_devices(devices)


def refuse_offloading(what: str, target: Target) -> None:
    """Refuses to keep values of loops in the host's memory where a compiler is known to read them in the wrong order.

    Raises:
      ValueError: this is such a compiler: that of GPUs before jaxlib 0.11.1 (https://github.com/openxla/xla/issues/46231).
    """
    if target.platform == "gpu" and jaxlib_version() < (0, 11, 1):
        raise ValueError(
            f"{what} is refused for {target}: in loops, the compiler of NVIDIA GPUs in jaxlib "
            f"{'.'.join(map(str, jaxlib_version()))} reads what is in the host's memory in the wrong order, so that "
            "gradients are wrong in silence (openxla/xla#46231). Install jaxlib 0.11.1 or newer, or keep the values on "
            "the device, recompute them, or use `disk=`."
        )


def target_of(given: Any = None, *places: Any) -> Target:
    """The target that is given, or on which something is.

    Args:
      given: a target, a name, devices, or None.
      places: what may say where it is: arrays, types, tracers, shardings, meshes.

    Returns:
      The given one; else the first devices that are not there; else the default backend.

    Raises:
      ValueError: something is on other devices than those given, or on devices of a kind that is not known here.
    """
    found = next(filter(None, map(_where, places)), None)
    if given is None:
        return found or _here()
    chosen = _given(given)
    if found is not None and found.devices[0].device_kind != chosen.devices[0].device_kind:
        raise ValueError(f"the target is {chosen}, but arguments are on {found}. Leave out one of them.")
    return chosen


def _where(place: Any) -> Target | None:
    """The devices that are not there on which something is; None if there are none."""
    if isinstance(place, jax.Array) and not isinstance(place, _jax.Tracer):
        return None
    place = _jax.typeof(place) if isinstance(place, _jax.Tracer) else place
    sharding = place if isinstance(place, Sharding) else getattr(place, "sharding", None)
    mesh = place if isinstance(place, Mesh) else getattr(sharding, "mesh", None)
    if isinstance(mesh, Mesh):
        devices = tuple(mesh.devices.flat)
    elif isinstance(sharding, Sharding) and not isinstance(sharding, NamedSharding):
        devices = tuple(sorted(sharding.device_set, key=lambda device: device.id))
    else:
        return _of_kind(getattr(mesh, "abstract_device", None), getattr(mesh, "size", 1))
    return None if not devices or _jax.is_there(devices[0]) else _of_devices(devices)


def _of_kind(device: Any, count: int) -> Target | None:
    """The target of an abstract device; None if JAX runs on such devices."""
    if device is None or any(some.device_kind == device.device_kind for some in jax.devices()):
        return None
    known = [some for (kind, _), some in _known.items() if kind == device.device_kind]
    if not known:
        if device.platform == "cpu":
            return None
        raise ValueError(
            f"the values of this trace are on {device.device_kind!r}, and what such devices are is not known here. "
            'Make them with `st.target("H100")`, or give them: `target=devices`.'
        )
    return min(known, key=lambda some: (len(some.devices) < count, len(some.devices)))
