"""Saving: the states of a model as a flat dict of NumPy arrays that file formats take as they are, and back.

A key is saved as its data, a dtype that NumPy does not have as its bits, and a static value that is no number as JSON.
The first two do not say what they were: the states that are loaded do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._base.errors import StateStructureError, StateTraceError, describe
from .._jax import is_top_level, type_text, typeof, weak
from .find import Kind
from .find import states as find_states
from .formatting import first_of, show_unmatched
from .frame import look_at
from .state import State

_SCALARS = (bool, int, float, complex)


class Unmatched(NamedTuple):
    """What `load_state_dict` left alone.

    Attributes:
      missing: the paths that the model has and the values do not.
      unexpected: the paths that the values have and the model does not.
    """

    missing: list[str]
    unexpected: list[str]


def state_dict(model: Any, *kinds: Kind) -> dict[str, np.ndarray[Any, Any]]:
    """The states of a model as a flat dict of NumPy arrays, to be saved.

    `numpy.savez`, safetensors and orbax take it as it is, and `load_state_dict` writes it back.

    A state whose value is a pytree, such as moments of an optimizer, has an entry for each leaf
    (``"moments.0.mu.w"``). A key is saved as its `jax.random.key_data`. A dtype that NumPy does not have, such as
    bfloat16, is saved as its bits, in unsigned integers: ``saved["w"].view(jnp.bfloat16)`` are the numbers. A static
    value is an array without axes if it is a number, True or False; text, None and tuples are JSON, in bytes.

    Args:
      model: an object that holds states, or a container of them, as for `states`.
      *kinds: as for `states`: only states of one of them are saved.

    Returns:
      Copies of the values by path, in row-major order.

    Raises:
      StateTraceError: it is called while JAX traces a function.
      TypeError: a static value has no such form, a function or an enumeration for example.
      ValueError: two entries have the same path; an array was deleted, since its buffer was donated; or an array is on
        devices of other processes.

    Example:
      >>> import tempfile, numpy as np, statetransform as st
      >>> model = {"w": st.Param(np.ones(3)), "rng": st.RandomState(0), "is_training": st.State(True, static=True)}
      >>> file = tempfile.mkdtemp() + "/model.npz"
      >>> np.savez(file, **st.state_dict(model))
      >>> st.load_state_dict(model, np.load(file))
      Unmatched(missing=[], unexpected=[])
    """
    parts = _parts("state_dict", model, *kinds)
    leaves = [form for part in parts for form in part.forms()]
    arrays = [_bits(np.array(leaf, order="C")) for leaf in jax.device_get(leaves)]
    return dict(zip([path for part in parts for path in part.paths], arrays, strict=True))


def load_state_dict(model: Any, values: Mapping[str, Any], *, strict: bool = True) -> Unmatched:
    """Writes saved values back into the states of a model.

    Each value gets the dtype, the kind of key and the sharding that the state has now. All values are checked before
    the first one is written. To load a part, pass its states: ``st.load_state_dict(st.states(model, st.Param), part)``.

    Args:
      model: an object that holds states, or a container of them, as for `states`.
      values: arrays by path: what `state_dict` returned, what `numpy.load` reads from an ``.npz`` file, or what
        safetensors or orbax restore.
      strict: whether missing and unexpected paths are an error. With False what is there is loaded.

    Returns:
      The paths that were missing from the values, and those that no state has: a named tuple.

    Raises:
      StateStructureError: a path is missing or unexpected, or a value has another shape or dtype than the state.
      StateTraceError: it is called while JAX traces a function.
      TypeError: `values` is no mapping.

    Example:
      >>> import statetransform as st
      >>> model = {"w": st.Param(1.0), "b": st.Param(2.0)}
      >>> st.load_state_dict(model, {"w": 5.0, "c": 0.0}, strict=False)
      Unmatched(missing=['b'], unexpected=['c'])
      >>> model["w"].value, model["b"].value
      (5.0, 2.0)
    """
    if not isinstance(values, Mapping):
        raise TypeError(
            f"load_state_dict: expected a mapping from path to array, not {type(values).__name__}. "
            "Of a file pass what it holds: `st.load_state_dict(model, numpy.load(path))`."
        )
    parts = _parts("load_state_dict", model)
    expected = [path for part in parts for path in part.paths]
    here, given = set(expected), set(values)
    unmatched = Unmatched([p for p in expected if p not in given], [p for p in values if p not in here])
    if strict and any(unmatched):
        raise StateStructureError(
            "load_state_dict: the values are not those of these states. Nothing was written.\n"
            + show_unmatched(*unmatched)
            + "Write `strict=False` to load the others."
        )
    misfits, gap = list[str](), "\n  "
    loaded = [(part, part.take(values, misfits)) for part in parts if not given.isdisjoint(part.paths)]
    if misfits:
        raise StateStructureError(
            f"load_state_dict: these do not fit. Nothing was written.\n  {first_of(misfits, gap)}\n"
            "Assign `.value` directly to change the type of a state."
        )
    for part, new in loaded:  # one by one, so that no second copy of the model is on the devices
        part.write(new)
    return unmatched


class _Part(NamedTuple):
    """A state, and its value leaf by leaf, with a path for each; a static value is one leaf."""

    state: State
    paths: list[str]
    leaves: list[Any]
    treedef: Any

    def forms(self) -> list[Any]:
        """What is to be fetched from the devices."""
        form = _static_form if self.state.static else _saved_form
        return [form(self.state, leaf) for leaf in self.leaves]

    def take(self, values: Mapping[str, Any], misfits: list[str]) -> list[Any]:
        """The leaves with those in their places that are given; says which do not fit."""
        new = list(self.leaves)
        for i, path in enumerate(self.paths):
            if path in values:
                try:
                    new[i] = _static_value(values[path]) if self.state.static else _fitted(new[i], values[path])
                except _MisfitError as misfit:
                    misfits.append(f"{path!r}: {misfit}")
        if self.state.static:
            self.state._check(new[0])
        return new

    def write(self, new: list[Any]) -> None:
        if not self.state.static:
            new = [x if x is held else _placed(held, x) for held, x in zip(self.leaves, new, strict=True)]
        self.state.value = self.treedef.unflatten(new)


def _parts(where: str, model: Any, *kinds: Kind) -> list[_Part]:
    if not is_top_level():
        raise StateTraceError(
            f"{where}: called while JAX traces a function, in which the states have no values yet.\n"
            "Call it after the transformed function has returned, or from the function of a `jax.debug.callback`."
        )
    parts, owners = list[_Part](), dict[str, State]()
    for path, state in find_states(model, *kinds).items():
        value = look_at(state)
        found, treedef = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda _, is_whole=state.static: is_whole)
        below = [jax.tree_util.keystr(keys, simple=True, separator=".") for keys, _ in found]
        paths = [".".join(filter(None, (path, name))) for name in below]
        for name in paths:
            if name in owners:
                raise ValueError(
                    f"{where}: {describe(owners[name])} and {describe(state)} have an entry of the same path, "
                    f"{name!r}. Rename an attribute or key on it."
                )
            owners[name] = state
        parts.append(_Part(state, paths, [leaf for _, leaf in found], treedef))
    return parts


# -- the forms that files take


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", np.bool_), jax.dtypes.prng_key)


def _is_foreign(dtype: Any) -> bool:
    """Whether NumPy writes a dtype to a file as if it had no meaning: bfloat16, float8, int4."""
    return dtype.isbuiltin == 2


def _bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.view(f"u{array.dtype.itemsize}") if _is_foreign(array.dtype) else array


def _saved_form(state: State, leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        if leaf.is_deleted():
            raise ValueError(
                f"state_dict: {describe(state)} holds an array that was deleted: its buffer was donated to a program."
            )
        if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            raise ValueError(
                f"state_dict: {describe(state)} is on devices of other processes. Save `st.values(model)` with orbax: "
                "each process then writes its own part."
            )
    elif isinstance(leaf, jax.ShapeDtypeStruct):
        raise ValueError(f"state_dict: {describe(state)} has a type only, and no value.")
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _static_form(state: State, value: Any) -> Any:
    is_number = type(value) in (bool, float) or (type(value) is int and -(2**63) <= value < 2**63)
    if is_number or (isinstance(value, np.generic) and value.dtype.kind in "biufc"):
        return np.asarray(value, np.int64 if type(value) is int else None)
    if not _is_json(value):
        raise TypeError(
            f"state_dict: {describe(state)} is static and holds {value!r}, for which files have no form: they take "
            "numbers, text, None, and tuples of them.\n"
            "Hold its name and look the rest up where it is used, or save the other states: "
            "`st.state_dict(model, lambda state: not state.static)`."
        )
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _is_json(value: Any) -> bool:
    """Whether JSON gives back the same; an enumeration of integers becomes a number."""
    return all(map(_is_json, value)) if type(value) is tuple else type(value) in (str, bool, int, float, type(None))


# -- and back


class _MisfitError(Exception):
    """A value does not fit a state: both types."""


def _static_value(given: Any) -> Any:
    if not isinstance(given, np.ndarray | jax.Array):
        return given
    array = np.asarray(given)
    if array.ndim == 0:
        return array.item() if array.dtype.kind in "bUS" or array.dtype.itemsize == 8 else array[()]
    try:
        if array.dtype != np.uint8:
            raise ValueError
        return _with_tuples(json.loads(array.tobytes()))
    except ValueError as error:
        raise _MisfitError(f"the state is static, and {type_text(typeof(array))} is no saved static value") from error


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _fitted(held: Any, given: Any) -> Any:
    """A given value with the dtype of the one that is held."""
    dtype = getattr(held, "dtype", None)
    if isinstance(given, jax.Array) and given.dtype == dtype and given.shape == held.shape:
        return given
    array: Any = np.asarray(jax.device_get(given)) if not _is_key(given) else given
    if _is_key(held):
        data, kind = _key_form(held)
        if (array.shape, array.dtype) == (data.shape, data.dtype):
            return jax.random.wrap_key_data(array, impl=kind)
    elif array.shape == np.shape(held) and type(held) in _SCALARS:
        if array.dtype.kind.replace("u", "i") == np.asarray(held).dtype.kind:
            return array
    elif array.shape == held.shape and not _is_key(array):
        target = np.dtype(dtype)
        if _is_foreign(target) and array.dtype == f"u{target.itemsize}":
            return array.view(target)
        if _canonical(array.dtype) == _canonical(target):
            converted = array.astype(target)
            if target.kind not in "iu" or np.array_equal(converted, array):
                return converted
    raise _MisfitError(f"the state holds {type_text(typeof(held))}, and the value is {_show(array)}")


def _key_form(held: Any) -> tuple[Any, Any]:
    """The type of the data of keys and their implementation, also of keys that were deleted or are types only."""
    kinds = list[Any]()
    read = lambda key: kinds.append(jax.random.key_impl(key)) or jax.random.key_data(key)
    return jax.eval_shape(read, jax.ShapeDtypeStruct(held.shape, held.dtype)), kinds[0]


def _canonical(dtype: Any) -> Any:
    """What JAX makes of a dtype, which is a narrower one without `jax_enable_x64`."""
    dtype = dtype.newbyteorder("=")
    return jax.dtypes.canonicalize_dtype(dtype) if dtype.kind in "biufc" else dtype


def _show(array: Any) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def _placed(held: Any, new: Any) -> Any:
    """A value of the same kind and in the same place as the one that is held."""
    if type(held) in _SCALARS:
        return type(held)(np.asarray(new).item())
    if isinstance(held, np.ndarray | np.generic):
        return np.asarray(new) if isinstance(held, np.ndarray) else np.asarray(new)[()]
    is_put = isinstance(held, jax.Array) and not held.committed
    if not _is_key(new) and (is_put or not isinstance(new, jax.Array)):
        new = np.array(new)  # of its own, since an array on the CPU may use the memory of NumPy's
    new = jax.device_put(new, None if is_put else held.sharding)
    return weak(new) if typeof(held).weak_type else new
