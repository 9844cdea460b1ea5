"""`State`, the mutable cell."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import TypeVar

from .._base.errors import StateTraceError, describe
from .._base.optional import require
from .._base.sites import user_site
from .._base.table import Table
from .._jax import Tracer, has_tracer, is_top_level
from .._objects.hooks import listening
from .._objects.lookup import slot_names
from .cell import Cell
from .formatting import show, show_item
from .frame import UNSET, innermost, look_at, own_arrays, peek, read
from .not_arrays import NotAnArray
from .tokens import Token

_CHECKED = (jax.Array, bool, int, float, complex)  # of these every value is one that JAX can hold
_OWN_SLOTS = ("_name", "_static", "_metadata", "_created")

T = TypeVar("T", default=Any)


class State(NotAnArray, Generic[T]):
    """One mutable cell that holds a pytree of arrays.

    Read and write its `value`. The transforms of `statetransform.transform` turn the states that a function reads and
    writes into arguments and results of the JAX transform. Array values can also be read and written by index:
    `u[0]`, `u[1:] = x`. A `State` is compared and hashed by identity, is not a pytree node, and never holds a tracer:
    inside a transform the traced value lives with the trace. `copy.copy`, `copy.deepcopy` and `pickle` give
    independent states.

    Args:
      value: a pytree of JAX arrays, NumPy arrays or Python scalars; with ``static=True`` any hashable
        Python value. A NumPy array is copied and stays a NumPy array.
      name: what error messages and tables call the state.
      static: the value is never traced. It is part of every cache key, so Python control flow on it
        is correct, and changing it re-traces.
      **metadata: anything else to remember about the state, see `metadata`.

    Raises:
      TypeError: the value has a leaf that is not an array, or is static and not hashable; or the state itself is used
        as an array (write `.value`).
      StateTraceError: on a write inside a raw JAX transform, see `StateTraceError`.

    Warns:
      UserWarning: a keyword argument looks like a misspelt `name` or `static`; or the state is the default of a field
        of a dataclass, which all of its instances would share.

    Example:
      >>> import jax.numpy as jnp
      >>> from statetransform import State, transform
      >>> u = State(jnp.zeros(3), name="u")
      >>> @transform.jit
      ... def step(dt):
      ...     u.value = u.value + dt
      >>> step(0.5)
      >>> u
      State(float32[3], name='u')
      >>> u[0]
      Array(0.5, dtype=float32)
    """

    __slots__ = ("__weakref__", "_created", "_metadata", "_name", "_static", "_token", "_value")
    _cell: Any = Cell()
    _is_handle = False  # whether it represents a cell that is found without it
    _is_elsewhere = False  # whether the cell of another framework keeps the value
    _is_in_place = False  # whether what holds the value is overwritten by a write, so that readers get copies

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("__eq__", "__hash__"):
            if getattr(cls, name) is not getattr(NotAnArray, name):
                raise TypeError(
                    f"{cls.__qualname__} defines `{name}`, but states are told apart by identity: two that are equal "
                    "would be taken for one. Give the comparison a name of its own, or compare `.value`."
                )
            # As methods of its own, so that `@dataclass` does not add others.
            setattr(cls, name, getattr(NotAnArray, name))

    def __set_name__(self, owner: type, name: str) -> None:
        """Speaks of a default that a dataclass, or a class like it, would give to each of its instances."""
        try:
            annotation = str(inspect.get_annotations(owner).get(name, "ClassVar"))
        except Exception:  # on Python 3.14 it is evaluated here, and may name what is not there yet
            return
        if "ClassVar" not in annotation:
            text = (
                f"{describe(self)} is the default of the field {name!r} of {owner.__qualname__}, so all instances "
                "share it. For one each write `dataclasses.field(default_factory=lambda: State(...))`; if all are to "
                "share it, annotate it with `ClassVar[State]`."
            )
            warnings.warn_explicit(text, UserWarning, *user_site())

    # Scalars and NumPy arrays are given back as they are until a transform writes the state.
    @overload
    def __init__(self, value: T, *, static: Literal[True], name: str | None = None, **metadata: Any) -> None: ...
    @overload
    def __init__(
        self: State[Any],
        value: complex | np.ndarray[Any, Any] | np.generic,
        *,
        name: str | None = None,
        static: bool = False,
        **metadata: Any,
    ) -> None: ...
    @overload
    def __init__(self, value: T, *, name: str | None = None, static: bool = False, **metadata: Any) -> None: ...
    def __init__(self, value: Any, *, name: str | None = None, static: bool = False, **metadata: Any) -> None:
        for key in metadata:
            _warn_of_slip(key)
        self._begin(value, name, static, metadata)

    def _begin(self, value: Any, name: str | None, static: bool, metadata: dict[str, Any]) -> None:
        self._name = name
        self._static = static
        self._metadata = metadata
        self._token = Token(self)
        self._created = user_site()
        self._value = UNSET
        self._check(value)
        if not static:
            value = own_arrays(value)
        frame = innermost()
        if frame is not None:
            frame.born[self] = value
        elif not static and has_tracer(value):
            if is_top_level():
                raise StateTraceError.leaked_tracer(self)
            raise StateTraceError(
                f"{describe(self)} is created from a traced value inside a raw JAX transform, which cannot carry "
                "the value out.\n"
                "Use the transform of the same name from `statetransform.transform`, or create the state "
                "outside and write it inside."
            )
        else:
            self._value = value

    @property
    def value(self) -> T:
        """The whole value; inside a transform, the one that the running function sees."""
        return look_at(self)

    @value.setter
    def value(self, value: T) -> None:
        self._check(value)
        if not self._static and not isinstance(value, _CHECKED):
            value = own_arrays(value)
        frame = innermost()
        if frame is not None:
            frame.write(self, value)
        elif not is_top_level():
            raise StateTraceError.raw_write(self)
        elif not self._static and has_tracer(value):
            raise StateTraceError.leaked_tracer(self)
        else:
            self._value = value

    @property
    def name(self) -> str | None:
        """What error messages and tables call the state."""
        _looked_up(self, "name")
        return self._name

    @property
    def static(self) -> bool:
        """Whether the value is a Python value that is never traced."""
        return self._static

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The further keyword arguments that the state was created with, read-only."""
        _looked_up(self, "metadata")
        return MappingProxyType(self._metadata)

    def __getitem__(self, index: Any) -> Any:
        value = look_at(self)
        return value if index is Ellipsis else value[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(look_at(self))  # Python would read by index until that fails, and JAX's indexing never does

    def __setitem__(self, index: Any, value: Any) -> None:
        held = read(self)
        if index is Ellipsis and isinstance(held, np.ndarray) and isinstance(value, np.ndarray):
            self.value = np.broadcast_to(value, held.shape).astype(held.dtype)  # type: ignore[assignment]
        elif isinstance(held, jax.Array | np.ndarray):
            self.value = jnp.asarray(held).at[index].set(value)  # type: ignore[assignment]
        elif index is Ellipsis:
            self.value = value
        else:
            raise TypeError(
                f"{describe(self)} holds a value of type {type(held).__name__}, and only an array can be written by "
                "index. Assign the whole value: `state.value = ...`."
            )

    def __repr__(self) -> str:
        value = peek(self)
        parts = [repr(value) if self._static else show(value)]
        if self._name is not None:
            parts.append(f"name={self._name!r}")
        if self._static:
            parts.append("static=True")
        parts += [f"{key}={show_item(item)}" for key, item in self._metadata.items()]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        value, name = peek(self), "" if self._name is None else f" {self._name!r}"
        if self._static or value is UNSET:
            rows = [("static" if self._static else "value", repr(value) if self._static else show(value))]
        else:
            leaves = jax.tree_util.tree_leaves_with_path(value)
            rows = [(jax.tree_util.keystr(path) or "value", show(leaf)) for path, leaf in leaves]
        rows += [(key, show_item(item)) for key, item in self._metadata.items()]
        return Table(f"{type(self).__name__}{name}", ["", ""], rows).html()

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        """As in `repr`, with the value as treescope shows it: a picture of each array."""
        render = require("treescope.repr_lib", "", "treescope").render_object_constructor
        shown: dict[str, Any] = {"value": "<no value>" if (value := peek(self)) is UNSET else value}
        if self._name is not None:
            shown["name"] = self._name
        if self._static:
            shown["static"] = True
        return render(
            object_type=type(self), attributes={**shown, **self._metadata}, path=path, subtree_renderer=subtree_renderer
        )

    def __copy__(self) -> State:
        return self._replicate(self.__getstate__())

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        new = memo[id(self)] = self._replicate(self.__getstate__(), copy.deepcopy, memo)
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.__getstate__()))

    def __getstate__(self) -> dict[str, Any]:
        return {
            "value": read(self),
            "name": self._name,
            "static": self._static,
            "metadata": self._metadata,
            "attributes": self._attributes(),
        }

    def _replicate(self, parts: dict[str, Any], copier: Any = copy.copy, *args: Any) -> State:
        value = parts["value"]
        if not self._static:
            # JAX's arrays too: they are immutable until they are donated.
            is_copied = lambda leaf: isinstance(leaf, np.ndarray | jax.Array) and not isinstance(leaf, Tracer)
            value = jax.tree.map(lambda leaf: copy.deepcopy(leaf) if is_copied(leaf) else leaf, value)
        rest = {key: copier(parts[key], *args) for key in ("metadata", "attributes")}
        return _rebuild(type(self), {**parts, **rest, "value": value})

    def _attributes(self) -> dict[str, Any]:
        """What a subclass has added, in its `__dict__` and in slots."""
        slots = [name for name in slot_names(type(self)) if name not in slot_names(State) and hasattr(self, name)]
        return {**getattr(self, "__dict__", {}), **{name: getattr(self, name) for name in slots}}

    def _is_gone(self) -> bool:
        """Whether it represents an object that no longer exists."""
        return False

    def _blank(self) -> State:
        """A state like this one, without its value."""
        blank = object.__new__(type(self))
        for slot in _OWN_SLOTS:
            setattr(blank, slot, getattr(self, slot))
        blank._token = Token(blank)
        blank._value = UNSET
        for key, item in self._attributes().items():
            setattr(blank, key, item)
        return blank

    def _check(self, value: Any) -> None:
        if self._static:
            try:
                hash(value)
            except TypeError as error:
                raise TypeError(
                    f"{describe(self)} is static, but its value of type {type(value).__name__} is not hashable. "
                    "A static value is part of cache keys: use a tuple, a frozenset or a frozen dataclass."
                ) from error
        elif not isinstance(value, _CHECKED):
            for path, leaf in jax.tree_util.tree_leaves_with_path(value):
                if not is_array(leaf):
                    raise TypeError(
                        f"{describe(self)} is given a value of type {type(leaf).__name__}"
                        f"{' at ' + jax.tree_util.keystr(path) if path else ''}, which is not an array. "
                        "A state holds arrays and Python scalars, in any pytree; "
                        "use `State(value, static=True)` for other hashable values"
                        + (", and `.value` for the value of another state." if isinstance(leaf, State) else ".")
                    )


def _looked_up(state: State, name: str) -> None:
    """Tells who records a trace that the name or the metadata matter to it."""
    for listener in listening.listeners:
        listener.looks_up(state, name)


def is_array(leaf: Any) -> bool:
    """Whether JAX can hold a value; numpy also has arrays of text, dates and objects."""
    dtype = getattr(leaf, "dtype", None)
    return isinstance(leaf, _CHECKED) or (dtype is not None and getattr(dtype, "kind", "") not in tuple("OUSMm"))


def _warn_of_slip(key: str) -> None:
    """Speaks of a misspelt option, which would be metadata otherwise; not of a word such as `names` or `mean`."""
    for meant in ("name", "static"):
        gaps = range(len(meant))
        swapped = {meant[:i] + meant[i : i + 2][::-1] + meant[i + 2 :] for i in gaps}
        slips = swapped | {meant[:i] + meant[i + 1 :] for i in gaps} | {meant[:i] + meant[i] + meant[i:] for i in gaps}
        if key.lower() in slips:
            text = f"State: `{key}` is kept as metadata. If `{meant}` was meant, write `{meant}=`."
            warnings.warn_explicit(text, UserWarning, *user_site())


def _rebuild(kind: type[State], parts: dict[str, Any]) -> State:
    """A state with the given parts, made without calling the `__init__` of a subclass."""
    state = object.__new__(kind)
    state._begin(parts["value"], parts["name"], parts["static"], parts["metadata"])
    for key, item in parts["attributes"].items():
        setattr(state, key, item)
    return state
