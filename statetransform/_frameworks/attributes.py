"""Plain attributes as states: of one object, or of every instance of a class."""

from __future__ import annotations

import types
from typing import Any

import jax

from .._base.library import HEAP_TYPE
from .._objects.lookup import class_lookup
from .._objects.plain import MISSING
from .._states.adapters import register, register_owner_if
from .._states.cell import cell_behind
from .._states.state import State
from .descriptor import CellDescriptor


def attr(obj: Any, field: str) -> State:
    """Makes an attribute of one object a state, and returns a handle to it.

    From now on transforms lift the attribute. Read and write `obj.field` as before, or `handle.value`, which is the
    same. Other objects of the class keep their plain attribute. The handle does not keep the object alive.

    Args:
      obj: an object of a Python class: with a `__dict__`, with slots, a dataclass (frozen or not), a pytree.
      field: the name of an attribute that holds a pytree of arrays, or of a property that reads and writes one such
        attribute and does nothing else.

    Returns:
      The `State` of the attribute, the same at each call.

    Raises:
      AttributeError: there is no such attribute.
      TypeError: the value has a leaf that is not an array, a property computes something, or the class is written in C.

    Example:
      >>> import statetransform as st
      >>> class Counter:
      ...     def __init__(self):
      ...         self.n = 0
      >>> counter = Counter()
      >>> n = st.attr(counter, "n")
      >>> @st.transform.jit
      ... def count():
      ...     counter.n = counter.n + 1
      >>> count(), count()
      (None, None)
      >>> int(counter.n), int(n.value)
      (2, 2)
    """
    kind = type(obj)
    getattr(obj, field)
    if not kind.__flags__ & HEAP_TYPE or isinstance(obj, type | types.ModuleType):
        raise TypeError(
            f"attr: {kind.__name__} is not a class written in Python, so its attributes cannot be made state-aware. "
            f"Hold the value in a `State`, or {field!r} in an object of a class of your own."
        )
    cells = _descriptor("attr", kind, field, is_each=False)
    if isinstance(held := cells.plain(obj), State):
        raise TypeError(f"attr: {kind.__name__}.{field} already holds a State; use that one")
    if not cells.can_lift(held):
        raise TypeError(
            f"attr: {kind.__name__}.{field} holds a value of type {type(held).__name__}, which is not an array. "
            "A state holds arrays and Python scalars, in any pytree."
        )
    if not jax.tree_util.all_leaves([obj]):
        register_owner_if(kind, cells.existing_handle)
    return cells.handle(obj)


def register_state_type(cls: type, *, attribute: str) -> type:
    """Teaches the package a mutable cell: from now on transforms lift each instance of a class as they do a `State`.

    You read and write instances as before, and can pass them wherever a state is expected: `states=cell`,
    `st.states(model, Cell)`.

    Args:
      cls: the class; its subclasses come with it.
      attribute: the attribute in which instances keep the value, or a property that reads and writes one such
        attribute and does nothing else.

    Returns:
      The class, so that this is a decorator by `functools.partial`.

    Raises:
      TypeError: the property computes something, or the class is written in C.

    Example:
      >>> import statetransform as st
      >>> class Box:
      ...     def __init__(self, content):
      ...         self.content = content
      >>> Box = st.register_state_type(Box, attribute="content")
      >>> box = Box(1.0)
      >>> def double():
      ...     box.content = box.content * 2
      ...     return box.content
      >>> float(st.transform.jit(double)()), float(box.content)
      (2.0, 2.0)
      >>> float(st.transform.grad(double, states=box)())
      2.0
    """
    if not isinstance(cls, type) or not cls.__flags__ & HEAP_TYPE:
        raise TypeError(f"register_state_type: {cls!r} is not a class written in Python")
    if issubclass(cls, State):
        raise TypeError(f"register_state_type: {cls.__name__} is already a State")
    if not isinstance(attribute, str):
        raise TypeError(f"register_state_type: `attribute` must be the name of an attribute, not {attribute!r}")
    cells = _descriptor("register_state_type", cls, attribute, is_each=True)
    cells.is_each = True  # also of a descriptor that `attr` has put there
    register(cls, cells, may_be_pytree=True)
    return cls


def _descriptor(where: str, cls: type, name: str, is_each: bool) -> CellDescriptor:
    """The descriptor on a class, put there if there is none; for a property, that of the attribute behind it."""
    found = class_lookup(cls, name)
    if isinstance(found, property) and cell_behind(found) is None:
        name = _storage(cls, found) or name
        found = class_lookup(cls, name)
    if (cells := cell_behind(found)) is not None:
        return cells
    if found is not MISSING and hasattr(type(found), "__set__") and not isinstance(found, types.MemberDescriptorType):
        raise TypeError(
            f"{where}: {cls.__name__}.{name} is of type {type(found).__name__} and does more than read and write "
            "one attribute. Name the attribute in which instances keep the value."
        )
    cells = CellDescriptor(name, found, is_each)
    try:
        setattr(cls, name, cells)
    except (TypeError, AttributeError) as error:
        raise TypeError(f"the class {cls.__name__} does not let its attribute {name!r} be replaced") from error
    return cells


class _Probe:
    """In the place of an instance: runs the class's methods and properties, and notes the attributes they use."""

    def __init__(self, cls: type) -> None:
        object.__setattr__(self, "cls", cls)
        object.__setattr__(self, "noted", [])

    def __getattribute__(self, name: str) -> Any:
        cls = object.__getattribute__(self, "cls")
        if isinstance(found := class_lookup(cls, name), types.FunctionType | property):
            return found.__get__(self, cls)
        value = object()
        object.__getattribute__(self, "noted").append((name, value))
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        found = class_lookup(object.__getattribute__(self, "cls"), name)
        if isinstance(found, property):
            found.__set__(self, value)
        else:
            object.__getattribute__(self, "noted").append((name, value))


def _storage(cls: type, found: property) -> str | None:
    """The one attribute that a property reads and writes; None where it does anything else."""
    probe, given = _Probe(cls), object()
    try:
        got = found.fget(probe)  # type: ignore[misc]  # without a getter this is a TypeError
        if found.fset is not None:
            found.fset(probe, given)
    except Exception:
        return None
    noted = object.__getattribute__(probe, "noted")
    name = noted[0][0] if noted else None
    return name if noted == [(name, got), (name, given)][: 1 + (found.fset is not None)] else None


__all__ = ["attr", "register_state_type"]
