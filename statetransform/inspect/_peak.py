"""`peak`: how many bytes a device held at most."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from .._memory.programs.sizes import format_bytes


@dataclasses.dataclass
class Peak:
    """The most bytes in use at the same time on each device, complete when the context has ended.

    Attributes:
      by_device: for each local device; None where its allocator does not tell.
      bounds: the devices for which `by_device` is a bound: an earlier peak was at least as high.
      bytes_before: the bytes in use on each device when the context began, which are part of the peak.
    """

    by_device: dict[Any, int | None] = dataclasses.field(default_factory=dict)
    bounds: frozenset[Any] = frozenset()
    bytes_before: dict[Any, int | None] = dataclasses.field(default_factory=dict)

    @property
    def bytes(self) -> int | None:
        """The bytes of the device with the highest peak; None where no device tells."""
        return max((size for size in self.by_device.values() if size is not None), default=None)

    @property
    def is_bound(self) -> bool:
        """Whether `bytes` is a bound: the peak was that or less."""
        return any(self.by_device[device] == self.bytes for device in self.bounds)

    def __str__(self) -> str:
        if self.bytes is None:
            return "peak: unknown: the backend does not report it"
        return f"peak: {'at most ' if self.is_bound else ''}{format_bytes(self.bytes)} on a device"


@contextlib.contextmanager
def peak() -> Iterator[Peak]:
    """Measures the peak bytes per device of what runs in a `with` block, as the device's allocator counts them.

    All that is in use counts, also what was there before. An allocator keeps one peak for the whole process: where an
    earlier one was at least as high, that is a bound, and `is_bound` says so. On entry and exit, the context waits for
    what the devices still compute.

    Returns:
      A context manager that gives a `Peak`. Its `bytes` is None where the backend does not tell, as on the CPU.

    References:
      https://docs.jax.dev/en/latest/device_memory_profiling.html

    Example:
      >>> import jax.numpy as jnp
      >>> from statetransform import inspect
      >>> with inspect.peak() as found:
      ...     y = jnp.sin(jnp.ones(8))
      >>> found.bytes is None or found.bytes >= y.nbytes
      True
    """
    devices = jax.local_devices()
    _wait(devices)
    before = {device: device.memory_stats() or {} for device in devices}
    found = Peak(bytes_before={device: stats.get("bytes_in_use") for device, stats in before.items()})
    try:
        yield found
    finally:
        _wait(devices)
        bounds = set()
        for device in devices:
            size = found.by_device[device] = (device.memory_stats() or {}).get("peak_bytes_in_use")
            if size is not None and size <= before[device].get("peak_bytes_in_use", 0):
                bounds.add(device)
        found.bounds = frozenset(bounds)


def _wait(devices: list[Any]) -> None:
    """Until the devices have done what they were given: they work in order."""
    jax.block_until_ready([jax.device_put(0, device) + 0 for device in devices])
    jax.effects_barrier()
