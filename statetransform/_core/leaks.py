"""Tracers that a trace has left in attributes and containers of the user's objects: found, and taken out again."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any

from .cells import Cells
from .edges import Edge
from .jaxcompat import has_tracer
from .lookup import class_lookup, instance_attribute
from .plain import MISSING
from .recorder import Recorder
from .state import State


def leaked(recorder: Recorder) -> tuple[Any, str, bool] | None:
    """An attribute that the trace set and that now holds a tracer, and whether it held a state before.

    All such attributes get their earlier values again, and containers of the arguments their earlier contents.
    """
    before: dict[tuple[int, str], Any] = {}
    for register, name, value in recorder.changes:
        before.setdefault((register, name), value)
    found = None
    for (register, name), value in before.items():
        obj = recorder.objects[register]
        if isinstance(class_lookup(type(obj), name), Cells):
            continue  # frames take care of it
        now = instance_attribute(obj, name)
        if now is MISSING or now is value or isinstance(now, State) or not _leaks(now):
            continue
        found = found or (obj, name, isinstance(value, State))
        if value is MISSING:
            object.__delattr__(obj, name)
        else:
            object.__setattr__(obj, name, value)
    return found or _leaked_into_container(recorder)


def _leaked_into_container(recorder: Recorder) -> tuple[Any, str, bool] | None:
    found = None
    for edge in recorder.edges:
        if edge.what not in ("sequence", "mapping", "plains") or edge.register in recorder.outside:
            continue
        container = recorder.objects[edge.register]
        if not isinstance(container, list | dict | collections.deque) or not any(
            _is_new(recorder, value) for value in _values(container)
        ):
            continue
        owner = recorder.objects[edge.parent] if edge.parent >= 0 else container
        name = edge.key if edge.how == "attr" else f"[{edge.key!r}]"
        found = found or (owner, name, False)
        contents = _contents(recorder, edge)
        container.clear()
        container.update(contents) if isinstance(container, dict) else container.extend(contents)
    return found


def _is_new(recorder: Recorder, value: Any) -> bool:
    return recorder.register_of(value) is None and _leaks(value)


def _contents(recorder: Recorder, edge: Edge) -> Any:
    """What a container held when it was reached."""
    if edge.what == "plains":
        return edge.argument[1]
    inside = [e for e in recorder.edges if e.parent == edge.register and e.how in ("item", "nth", "nthvalue")]
    values = [e.argument if e.what == "plain" else recorder.objects[max(e.register, 0)] for e in inside]
    values = [recorder.objects[e.argument] if e.what == "same" else v for e, v in zip(inside, values, strict=True)]
    if edge.what == "mapping":
        return zip([e.key for e in inside], values, strict=True)
    return zip(values[::2], values[1::2], strict=True) if inside and inside[-1].how == "nthvalue" else values


def _values(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _leaks(value: Any) -> bool:
    try:
        return has_tracer(value)
    except Exception:
        return False
