"""An edge: one step from an object to a value, and the condition that the value has to meet."""

from __future__ import annotations

import operator
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._objects.lookup import inherited, instance_attribute
from .._objects.plain import MISSING, is_plain, same_plain
from .._states.frame import read

#: Conditions that say that something is not there.
ABSENCE = ("absent", "nowhere", "unset")


class Edge(NamedTuple):
    """One step from an object to a value, and what must hold of the value.

    Attributes:
      parent: the register of the object; -1 for a root.
      how: the kind of step: "root", "attr", "dict" (an entry of `__dict__`), "item", "cell", "global", "method" (the
        function behind a bound method), "class", "inherited" (what a class has under a name, from one of its bases
        on), "reader" (what a function gives for it: a tuple of what a set holds, the handle of a cell of another
        framework), "value" (of a static state).
      key: the name, index or key; of a cell, its number and name; the function of a "reader".
      what: the kind of condition: "plain" (equal and of equal type), "plains" (all elements are), "same" (an alias),
        "object" and "type" (an instance of a class, of the user's and any other), "state", "sequence", "mapping",
        "array" (equal content), "is" (the very object), "code" (a function of this code), "absent" (no attribute of
        the instance), "nowhere" (no attribute at all), "unset" (a slot, variable or global name without a value).
      argument: what the condition compares with.
      register: of the value; -1 when it gets none.
    """

    parent: int
    how: str
    key: Any
    what: str
    argument: Any
    register: int


def step(parent: Any, how: str, key: Any) -> Any:
    """Takes one step; `parent` is the sequence of roots for the first one."""
    if how == "attr":
        return getattr(parent, key)
    if how == "item" or how == "root":
        return parent[key]
    if how == "method":
        return getattr(parent, key).__func__
    if how == "cell":
        return parent.__closure__[key[0]].cell_contents
    if how == "global":
        return parent.__globals__[key]
    if how == "dict":
        return parent.__dict__[key]
    if how == "reader":
        return key(parent)
    if how == "inherited":
        return inherited(parent, key)
    return read(parent) if how == "value" else type(parent)


def holds(x: Any, what: str, argument: Any) -> bool:
    """Whether a value meets a condition, aliases and absence apart."""
    if what == "plain":
        return x is argument or same_plain(x, argument)
    if what == "state":
        return type(x) is argument[0]() and x._static is argument[1]
    if what == "sequence":
        return type(x) is argument[0] and len(x) == argument[1]
    if what == "mapping":
        return (
            type(x) is argument[0]
            and all(
                map(operator.is_, map(type, x), map(type, argument[1]))
            )  # first: a state as a key has no other equal
            and [*x] == argument[1]
        )
    if what == "code":
        return type(x) is types.FunctionType and x.__code__ is argument()
    if what == "is":
        return x is argument() and x is not None
    if what == "type" or what == "object":
        return type(x) is argument()
    if what == "plains":
        elements = tuple(x.items() if hasattr(x, "items") else x) if type(x) is argument[0] else ()
        return type(x) is argument[0] and same_plain(elements, argument[1])
    if what == "array":
        return argument.is_of(x)
    raise AssertionError(what)


def absent(parent: Any, how: str, key: Any, what: str) -> bool:
    """Whether an instance or class has no such attribute itself; "nowhere": no attribute; "unset": no value."""
    if what == "nowhere":
        return not hasattr(parent, key)
    if what == "absent":
        return key not in parent.__dict__
    if how == "global":
        return key not in parent.__globals__
    if how == "attr":
        return instance_attribute(parent, key) is MISSING
    try:
        parent.__closure__[key[0]].cell_contents  # noqa: B018 - whether it raises
    except ValueError:
        return True
    return False


def compare(edge: Edge, parent: Any, other: Any) -> tuple[bool, Any]:
    """Whether an edge from an object holds, and what is there now; `other` is what an alias has to be.

    Whatever fails on the way, in user code too, says that it does not hold.
    """
    _, how, key, what, argument, _ = edge
    try:
        if what in ABSENCE:
            is_absent = absent(parent, how, key, what)
            return is_absent, MISSING if is_absent else step(parent, how, key)
        now = step(parent, how, key)
        return now is other if what == "same" else holds(now, what, argument), now
    except Exception:
        return False, MISSING


def show_path(edges: Sequence[Edge], edge: Edge, root_names: Sequence[str]) -> str:
    """How the user would write the way to an edge: `self.layers[0].w`."""
    by_register = {e.register: e for e in edges if e.register >= 0}
    steps = [edge]
    while edge.parent >= 0:
        edge = by_register[edge.parent]
        steps.append(edge)
    return "".join(_show(edge, root_names) for edge in reversed(steps)).removeprefix(".")


def _show(edge: Edge, root_names: Sequence[str]) -> str:
    if edge.how == "root":
        return str(root_names[edge.key]) if edge.key < len(root_names) else f"argument {edge.key}"
    if edge.how in ("attr", "dict", "method", "global"):
        return f".{edge.key}" if edge.key not in ("__wrapped__", "__func__") else ""
    if edge.how == "item":
        return f"[{edge.key!r}]"
    if edge.how == "reader":
        return f".{edge.key.name}" if getattr(edge.key, "shows", False) else ""
    if edge.how in ("cell", "inherited"):
        return f".{edge.key[1] if edge.how == 'cell' else edge.key[0]}"
    return ".__class__" if edge.how == "class" else ""


def brief(value: Any) -> str:
    """How tables and warnings show a value."""
    if value is MISSING:
        return "not there"
    if is_plain(value) and len(text := repr(value)) <= 60:
        return text
    if isinstance(value, jax.Array | np.ndarray):
        return f"{type(value).__name__} {value.dtype}{list(value.shape)}"
    return (
        f"{type(value).__name__} of {len(value)}"
        if isinstance(value, list | dict | tuple | set)
        else type(value).__name__
    )


def said_of(edge: Edge) -> str:
    """How tables and warnings show what an edge has to lead to."""
    if edge.what == "plain":
        return brief(edge.argument)
    if edge.what in ABSENCE:
        return "not there"
    if edge.what in ("state", "object", "type"):
        kind = edge.argument[0]() if isinstance(edge.argument, tuple) else edge.argument()
        return kind.__name__ if kind is not None else "an object of a class that is gone"
    if edge.what in ("sequence", "mapping", "plains"):
        size = edge.argument[1]
        return f"{edge.argument[0].__name__} of {size if isinstance(size, int) else len(size)}"
    if edge.what == "same":
        return "the same object as another"
    return {"code": "another function", "is": "another object", "array": "another array"}[edge.what]
