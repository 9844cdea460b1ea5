"""An edge: one step from an object to a value, and the condition that the value has to meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .._objects.plain import MISSING
from .conditions import Absence


class Edge(NamedTuple):
    """One step from an object to a value, and what must hold of the value.

    Attributes:
      parent: the register of the object; -1 for a root.
      step: how the value is reached from it.
      condition: what it has to meet; None while that is not known yet.
      register: of the value; -1 when it gets none.
    """

    parent: int
    step: Any
    condition: Any
    register: int = -1


def compare(edge: Edge, parent: Any, found: Mapping[int, Any] | Sequence[Any]) -> tuple[bool, Any]:
    """Whether an edge from an object holds, and what is there now; `found` has what an alias has to be.

    Whatever fails on the way, in user code too, says that it does not hold.
    """
    step, condition = edge.step, edge.condition
    try:
        if isinstance(condition, Absence):
            is_absent = condition.holds_at(parent, step)
            return is_absent, MISSING if is_absent else step.take(parent)
        now = step.take(parent)
        return condition.holds(now, found), now
    except Exception:
        return False, MISSING


def show_path(edges: Sequence[Edge], edge: Edge, root_names: Sequence[str]) -> str:
    """How the user would write the way to an edge: `self.layers[0].w`."""
    by_register = {e.register: e for e in edges if e.register >= 0}
    steps = [edge.step]
    while edge.parent >= 0:
        edge = by_register[edge.parent]
        steps.append(edge.step)
    index = steps.pop().index
    root = str(root_names[index]) if index < len(root_names) else f"argument {index}"
    return "".join([root, *[step.text for step in reversed(steps)]]).removeprefix(".")
