"""Carries far from the device: rows of arrays in host memory, and rows of files.

In host memory there is one array for each leaf of the carry, whole rows of which are written and read in place. Files
are reached by `pure_callback`, which goes through every transform that the sweeps go through; a number that the sweeps
carry along puts the calls in order. A barrier stands at each transfer: without it XLA has merged results on the host
and on the device.

Rows below `Room.host` are in host memory, the others on disk. Which one it is may be known only on the device, and a
branch would copy all of host memory, so with both places a transfer goes to both: to a row that is not used in one, and
to row -1 in the other, where nothing happens.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from ...._jax import barrier, host_room, typeof, varying_axes
from ..arrays import Index, Leaves
from . import files

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device


@dataclasses.dataclass(frozen=True)
class Room:
    """How many carries may be far away, in host memory and in files."""

    host: int
    disk: int = 0
    folder: Any = None  # a `files.Folder`, where there are files
    at_once: int = 0  # rows of a file that are asked for at first

    @property
    def rows(self) -> int:
        """Both together."""
        return self.host + self.disk

    def empty(self, carry: Leaves) -> Far:
        """Room for carries such as this one."""
        is_key = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in carry]
        keys = tuple(jax.random.key_impl(x) if key else None for x, key in zip(carry, is_key, strict=True))
        words = RowFormat(self, (), keys).words(carry)
        row_format = RowFormat(self, tuple(map(typeof, words)), keys)
        buffers = [host_room(typeof(x), self.host + bool(self.disk)) for x in words] if self.host else []
        for aval in map(typeof, carry) if self.disk else ():
            if any(name is not None for name in aval.sharding.spec) or varying_axes(aval):
                raise ValueError(
                    f"{self.folder.where}: a carry of type {aval} is sharded over devices, and carries go to disk from "
                    "one device. Write `host=` instead of `disk=`: shards go to host memory as they are."
                )
        return Far(buffers, jnp.int32(0) if self.disk else None, row_format)


@dataclasses.dataclass(frozen=True)
class RowFormat:
    """What a carry looks like in a row: the types of its words, and how to make a key of each leaf that is one.

    A program calls `write` and `read` on the host. Arguments may have axes in front, for lanes of `vmap`, which share a
    row.
    """

    room: Room
    avals: tuple[Any, ...]
    keys: tuple[Any, ...]

    def words(self, carry: Leaves) -> Leaves:
        """Arrays of numbers."""
        return [x if key is None else jax.random.key_data(x) for x, key in zip(carry, self.keys, strict=True)]

    def carry(self, words: Leaves) -> Leaves:
        """The carry again."""
        pairs = zip(words, self.keys, strict=True)
        return [x if key is None else jax.random.wrap_key_data(x, impl=key) for x, key in pairs]

    def write(self, number: Any, row: Any, words: Leaves) -> np.ndarray:
        """Stores a row, and gives the number of the file."""
        number, words = np.asarray(number), [np.asarray(x) for x in words]
        places = [(x.shape, len(aval.shape)) for x, aval in zip(words, self.avals, strict=True)]
        lanes = np.broadcast_shapes(number.shape, *[shape[: len(shape) - n] for shape, n in places])
        found, at = self._same(number), int(np.asarray(row).flat[0])
        if at >= 0:
            found = files.write(self.room.folder, self.room.at_once, found, at, words)
        return np.full(lanes, found, np.int32)

    def read(self, number: Any, row: Any, following: Any, left: Any) -> tuple[np.ndarray, Leaves]:
        """The file's number, and the words of a row."""
        number = np.asarray(number)
        at, following, left = (int(np.asarray(x).flat[0]) for x in (row, following, left))  # the same in all lanes
        shapes = [(*number.shape, *aval.shape) for aval in self.avals]
        found = [np.zeros(shape, aval.dtype) for shape, aval in zip(shapes, self.avals, strict=True)]
        if at >= 0:
            loaded = files.read(self.room.folder, self._same(number), at, following)
            found = [np.broadcast_to(x, shape) for x, shape in zip(loaded, shapes, strict=True)]
        if left <= 0:
            files.close(self._same(number))
        return number, found

    def _same(self, numbers: np.ndarray) -> int:
        if (numbers != numbers.flat[0]).any():
            raise RuntimeError(
                f"{self.room.folder.where}: the lanes of a `vmap` have their carries in different files. With `disk=`, "
                "put `vmap` around forward and backward pass together, or around neither."
            )
        return int(numbers.flat[0])


@functools.partial(jax.tree_util.register_dataclass, data_fields=["buffers", "number"], meta_fields=["format"])
@dataclasses.dataclass(frozen=True)
class Far:
    """Carries far away: arrays `[rows, *leaf.shape]` in host memory, and the number of a file.

    The number is an int32: 0 before the first write, None without a file.
    """

    buffers: Leaves
    number: Any
    format: RowFormat

    def write(self, row: Index, carry: Leaves) -> Far:
        """With a carry in a row."""
        words, buffers, number = barrier(self.format.words(carry)), self.buffers, self.number
        if self.buffers:
            place = row if number is None else jnp.clip(row, 0, self.format.room.host)
            buffers = [_putter(0)(x, place, jax.device_put(y[None], HOST)) for x, y in zip(buffers, words, strict=True)]
        if number is not None:
            shape = jax.ShapeDtypeStruct((), jnp.int32)
            row = self._file_row(row)
            number = jax.pure_callback(self.format.write, shape, number, row, words, vmap_method="expand_dims")
        return dataclasses.replace(self, buffers=buffers, number=number)

    def read(self, row: Index, following: Index, left: Index) -> tuple[Far, Leaves]:
        """The carry in a row, any carry if that is negative; the `following` one is read next, and `left` more are."""
        near, words = self.format.room.host, []
        if self.buffers:
            place = jnp.clip(row, 0, near - 1)
            words = [jax.device_put(_getter(0)(x, place), DEVICE)[0] for x in self.buffers]
            words = barrier(words)
        if self.number is None:
            return self, self.format.carry(words)
        types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in self.format.avals]
        arguments = self.number, self._file_row(row), self._file_row(following), jnp.asarray(left, jnp.int32)
        out = jax.ShapeDtypeStruct((), jnp.int32), types
        number, loaded = jax.pure_callback(self.format.read, out, *arguments, vmap_method="broadcast_all")
        loaded = barrier(loaded)
        if self.buffers:
            loaded = [jnp.where(row < near, x, y) for x, y in zip(words, loaded, strict=True)]
        return dataclasses.replace(self, number=number), self.format.carry(loaded)

    def after(self, values: Any) -> tuple[Far, Any]:
        """The same carries and values, but the file is not read again before the values are computed.

        Otherwise the program could ask for a row before the one that it is to follow. Host memory may be read at once.
        """
        if self.number is None:
            return self, values
        number, values = barrier((self.number, values))
        return dataclasses.replace(self, number=number), values

    def _file_row(self, row: Index) -> Index:
        return jnp.maximum(jnp.asarray(row, jnp.int32) - self.format.room.host, -1)


# JAX's batching rules make gathers and scatters of these two; on host memory of a GPU only slices work.
@functools.cache
def _putter(axis: int) -> Any:
    """With a row replaced, `x` having an axis for it."""
    put = custom_vmap(lambda buffer, row, x: lax.dynamic_update_slice_in_dim(buffer, x, row, axis))

    @put.def_vmap
    def of_lanes(size: int, is_batched: list[bool], buffer: Any, row: Any, x: Any) -> tuple[Any, bool]:
        whole = [
            y if batched else lax.broadcast(y, (size,)) for y, batched in zip((buffer, x), is_batched[::2], strict=True)
        ]
        return _putter(axis + 1)(whole[0], row, whole[1]), True

    return put


@functools.cache
def _getter(axis: int) -> Any:
    """A row, which keeps its axis."""
    get = custom_vmap(lambda buffer, row: lax.dynamic_slice_in_dim(buffer, row, 1, axis))

    @get.def_vmap
    def of_lanes(size: int, is_batched: list[bool], buffer: Any, row: Any) -> tuple[Any, bool]:
        del size
        return _getter(axis + is_batched[0])(buffer, row), is_batched[0]

    return get
