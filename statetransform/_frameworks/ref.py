"""`jax.Ref`: read and written through its indexing, its methods and the functions of `jax.ref`.

The methods are looked up on the class, so they are replaced there; within a transform of this package they act on the
value that the innermost frame has, and anywhere else they are JAX's own. A `Ref` that was made within a JAX transform
is a tracer, of another class, and JAX's own affair.

What JAX gives for `ref[...]` is a copy, which later writes, in place, leave alone; the array that the `Ref` holds is
not. So a transform gets a copy, too, made by a compiled function, as reading by JAX takes forty times as long. A
program of `jit` makes its copies itself: it gets the array, and its result becomes the array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.ref
import numpy as np

from .._base.errors import StateTraceError, StateTransformError
from .._jax import buffer_of, has_tracer, is_top_level, set_buffer, set_current_trace, type_text, typeof
from .._states.adapters import register
from .._states.frame import innermost, peek, stack
from .descriptor import CellDescriptor
from .handles import Foreign, Proxy

_copy = jax.jit(jnp.copy)
_METHODS = ("__getitem__", "__setitem__", "addupdate", "at")
_FUNCTIONS = ("get", "set", "swap", "addupdate", "freeze")


class InPlace(Proxy):
    """The handle of a `Ref`."""

    __slots__ = ()
    _is_in_place = True

    @property
    def _bare(self) -> Any:
        """For the programs of `jit`: the array itself, at the top level."""
        held = buffer_of(self._ref())
        if held is None or not is_top_level():
            raise LookupError("to be read by JAX")
        return held

    @_bare.setter
    def _bare(self, value: Any) -> None:
        if is_top_level() and not has_tracer(value):
            set_buffer(self._ref(), value)
        else:
            self._value = value


class Refs(CellDescriptor):
    """How the handle of a `Ref` comes by its value."""

    handle_class = InPlace

    def __init__(self, get: Callable[..., Any], put: Callable[..., Any]) -> None:
        super().__init__("")
        self._get, self._put = get, put

    def stored(self, cell: Any) -> Any:
        return cell  # there always is a value

    def can_lift(self, value: Any) -> bool:
        return True

    def committed(self, cell: Any) -> Any:
        """Reading is an operation of JAX, and belongs to the trace around the outermost frame."""
        if is_top_level() and (held := buffer_of(cell)) is not None:
            return _copy(held)
        frame = stack.frame
        if frame is None:
            return self._get(cell, ...)
        while frame.parent is not None:
            frame = frame.parent
        if frame.outer is not None:
            with set_current_trace(frame.outer):
                return self._get(cell, ...)
        with jax.ensure_compile_time_eval():
            return self._get(cell, ...)

    def commit(self, cell: Any, value: Any) -> None:
        value = jnp.asarray(value, cell.dtype)
        if is_top_level() and buffer_of(cell) is not None and not has_tracer(value):
            set_buffer(cell, _copy(value))
        else:
            self._put(cell, ..., value)

    def takes_tracers(self, state: Any) -> bool:
        return True  # in a raw JAX transform, JAX carries the write out

    def check_raw_write(self, state: Foreign, value: Any) -> None:
        if is_top_level() and has_tracer(value):
            raise StateTraceError.leaked_tracer(state)

    def check_value(self, state: Foreign, value: Any) -> None:
        held = typeof(peek(state))  # within `vmap`, that of one lane
        if np.shape(value) != held.shape or _cast(value, held.dtype) is None:
            raise ValueError(
                f"a Ref keeps its type, {held.dtype}{list(held.shape)}, but is given a value of type "
                f"{type_text(typeof(value))}"
            )


def install() -> None:
    """Replaces the methods and functions.

    Raises:
      StateTransformError: this JAX has other ones.
    """
    home: Any = jax.Ref
    if any(name not in vars(home) for name in _METHODS) or any(not hasattr(jax.ref, name) for name in _FUNCTIONS):
        raise StateTransformError(
            f"JAX {jax.__version__} has a `jax.Ref` that this version of statetransform does not support. "
            "Use a `State` in place of the `Ref`."
        )
    get, put, add, at = (vars(home)[name] for name in _METHODS)
    refs = Refs(get, put)
    inside = _Inside(refs)

    methods = (
        _routed(get, inside.get),
        _routed(put, inside.set),
        _routed(add, lambda ref, x, idx=(): inside.addupdate(ref, idx, x)),
    )
    for name, method in zip(_METHODS, (*methods, property(_routed(at.fget, inside.view), doc=at.__doc__)), strict=True):
        setattr(home, name, method)
    for name in _FUNCTIONS:
        setattr(jax.ref, name, _routed(getattr(jax.ref, name), getattr(inside, name)))
    jax.freeze = jax.ref.freeze
    register(home, refs)


def _routed(function: Callable[..., Any], inside: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a `Ref` or a function of `jax.ref` that knows of frames."""

    @functools.wraps(function)
    def routed(ref: Any, *args: Any, **kwargs: Any) -> Any:
        ours = innermost() is not None and type(ref) is jax.Ref
        return (inside if ours else function)(ref, *args, **kwargs)

    return routed


class _Inside:
    """What the methods, and the functions of `jax.ref`, do within a transform of this package."""

    def __init__(self, refs: Refs) -> None:
        self._refs = refs

    def get(self, ref: Any, idx: Any = None) -> Any:
        value = stack.frame.read(self._refs.handle(ref))  # type: ignore[union-attr]
        return value if _is_all(idx) else value[idx]

    def set(self, ref: Any, idx: Any, value: Any) -> None:
        self._update(ref, idx, value, "set")

    def swap(self, ref: Any, idx: Any, value: Any) -> Any:
        before = self.get(ref, idx)
        self._update(ref, idx, value, "set")
        return before

    def addupdate(self, ref: Any, idx: Any, x: Any) -> None:
        self._update(ref, idx, x, "add")

    def view(self, ref: Any) -> Any:
        raise StateTraceError(
            "`ref.at` gives a view of a Ref, which a transform of statetransform cannot carry. Nothing was changed.\n"
            "Index the Ref itself: `ref[i]`, `ref[i] = x`."
        )

    def freeze(self, ref: Any) -> Any:
        raise StateTraceError(
            "a Ref that was made outside is frozen inside a transform, which cannot carry that out. Nothing was "
            "changed.\nRead its value, `ref[...]`, and freeze it outside."
        )

    def _update(self, ref: Any, idx: Any, x: Any, how: str) -> None:
        frame, state = stack.frame, self._refs.handle(ref)
        assert frame is not None
        held = jnp.asarray(frame.read(state))
        cast = _cast(x, ref.dtype)
        expected = held.shape if _is_all(idx) else jax.eval_shape(lambda held: held[idx], held).shape
        if cast is None or np.shape(x) != expected:
            raise ValueError(
                f"a part of a Ref, {ref.dtype}{list(expected)}, is given a value of type {type_text(typeof(x))}: "
                "as in JAX, nothing is converted or broadcast"
            )
        if _is_all(idx):
            frame.write(state, cast if how == "set" else held + cast)
        else:
            frame.write(state, getattr(held.at[idx], how)(cast))


def _is_all(idx: Any) -> bool:
    return idx is None or idx is Ellipsis or (type(idx) is tuple and (not idx or idx == (Ellipsis,)))


def _cast(value: Any, dtype: Any) -> Any:
    """A value in the type of a `Ref`, where JAX allows that; None where it does not."""
    aval = typeof(value)
    if aval.dtype == dtype:
        value = jnp.asarray(value)
        return jax.lax.convert_element_type(value, dtype) if aval.weak_type else value
    is_same_kind = any(
        jnp.issubdtype(dtype, kind) and jnp.issubdtype(aval.dtype, kind) for kind in (jnp.floating, jnp.integer)
    )
    return jnp.asarray(value, dtype) if aval.weak_type and is_same_kind else None
