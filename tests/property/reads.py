"""What random functions do with random graphs, written in the ways in which users write."""

from __future__ import annotations

import copy
import functools
import operator
import random
from collections.abc import Callable
from typing import Any

from statetransform import Param, State

from .graphs import Part, package


def number(value: Any) -> Any:
    if isinstance(value, State):
        return value.value
    if isinstance(value, bool):
        return 10.0 if value else 20.0
    if isinstance(value, int):
        return float(value)
    if isinstance(value, float):
        return value + 100.0
    if isinstance(value, str):
        return float(ord(value[0]))
    if value is None:
        return 50.0
    if isinstance(value, tuple):
        return sum((number(v) for v in value), 200.0)
    return 7.0


def bump(state: State) -> Any:
    state.value = state.value + 1
    return state.value


READS: dict[str, Callable[[Any, Any], Any]] = {
    "order": lambda r, x: number(r.order),
    "doubled": lambda r, x: number(r.doubled),
    "class attribute": lambda r, x: number(r.scale),
    "class of": lambda r, x: number(type(r).scale),
    "state": lambda r, x: number(r.w),
    "write": lambda r, x: bump(r.w) if r.w is not None else 1.0,
    "items": lambda r, x: sum((number(i) for i in r.items), 0.0),
    "length": lambda r, x: float(len(r.items)),
    "write all": lambda r, x: sum((bump(i) for i in r.items if isinstance(i, State)), 0.0),
    "table": lambda r, x: sum((number(v) + ord(k) for k, v in r.table.items()), 0.0),
    "get": lambda r, x: number(r.table.get("a")),
    "in": lambda r, x: 1.0 if "b" in r.table else 2.0,
    "method": lambda r, x: number(r.total(x)) if isinstance(r.order, int | float) else 0.0,
    "call": lambda r, x: r(x) if isinstance(r.order, int | float) else 0.0,
    "hasattr": lambda r, x: 3.0 if hasattr(r, "bias") else 4.0,
    "getattr": lambda r, x: number(getattr(r, "bias", None)),
    "try": lambda r, x: _try(r),
    "child": lambda r, x: number(r.child.order) + number(r.child.w) if r.child is not None else 0.0,
    "grandchild": lambda r, x: number(r.child.child) if r.child is not None else 0.0,
    "is self": lambda r, x: 1.0 if r.child is r else 2.0,
    "same state": lambda r, x: 1.0 if r.child is not None and r.child.w is r.w else 2.0,
    "same object": lambda r, x: 1.0 if r.child is not None and r.child.child is r.child else 2.0,
    "same item": lambda r, x: float(sum(i is j for i in r.items for j in r.items)),
    "child in items": lambda r, x: 1.0 if any(i is r.child for i in r.items) else 2.0,
    "write child": lambda r, x: bump(r.child.w) if r.child is not None and r.child.w is not None else 1.0,
    "deep": lambda r, x: sum((number(p.order) + number(p.w) for p in walk(r)), 0.0),
    "class": lambda r, x: float(len(type(r).__name__)),
    "shared": lambda r, x: bump(Part.shared),
    "vars": lambda r, x: float(len(vars(r))) if hasattr(r, "__dict__") else 0.0,
    "isinstance": lambda r, x: 1.0 if isinstance(r.child, Part) else 2.0,
    "type of state": lambda r, x: 1.0 if isinstance(r.w, Param) else 2.0,
    # names that are put together
    "f-string": lambda r, x: number(getattr(r, f"or{'der'}")) + number(getattr(r, f"{'bi'}as", None)),
    "in a message": lambda r, x: float(len(f"{r.order}, {r.child.order if r.child is not None else 'none'}")),
    "attrgetter": lambda r, x: number(operator.attrgetter("child.order")(r)) if r.child is not None else 1.0,
    "names of all": lambda r, x: sum((number(getattr(r, n)) for n in ("order", "scale", "w")), 0.0),
    # functions within functions
    "lambda": lambda r, x: (lambda part: number(part.order))(r) + (lambda: number(r.w))(),
    "key": lambda r, x: max((number(p.order) for p in sorted(walk(r), key=lambda p: number(p.scale))), default=1.0),
    "reduce": lambda r, x: functools.reduce(lambda a, p: a * 2 + number(p.order), walk(r), 0.0),
    "partial": lambda r, x: functools.partial(_order_of, r)(),
    "map": lambda r, x: sum(map(number, map(operator.attrgetter("order"), walk(r))), 0.0),
    "one line": lambda r, x: ONE(r) + TWO(r),
    "copy": lambda r, x: number(copy.copy(r).order),
    "match": lambda r, x: _matched(r.order),
    # code of somebody else
    "their function": lambda r, x: package.order_of(r),
    "their lambda": lambda r, x: package.short(r),
    "their f-string": lambda r, x: number(package.named(r, "order")) + number(package.named(r, "bias")),
    "their message": lambda r, x: package.shown(r),
    "their global": lambda r, x: float(package.SCALE) + package.TABLE["a"],
    "their method": lambda r, x: float(len([p for p in walk(r) if isinstance(p, package.Module)])),
}
ONE, TWO = lambda r: number(r.order), lambda r: number(r.child.order) if r.child is not None else 5.0


def _order_of(part: Any, factor: int = 3) -> Any:
    return number(part.order) * factor


def _matched(order: Any) -> float:
    match order:
        case bool():
            return 1.0
        case int() | float():
            return 2.0 + order
        case str() as text:
            return 30.0 + len(text)
        case _:
            return 40.0


def _try(r: Any) -> Any:
    try:
        return number(r.bias)
    except AttributeError:
        return 9.0


def walk(root: Any) -> list[Any]:
    """The objects that are reached by `child`."""
    found: list[Any] = []
    while root is not None and not any(root is part for part in found):
        found.append(root)
        root = root.child
    return found


def new_script(rng: random.Random) -> tuple[str, ...]:
    return tuple(rng.choice(list(READS)) for _ in range(rng.randrange(1, 5)))


def play(root: Any, script: tuple[str, ...], x: Any) -> Any:
    out = x
    for name in script:
        out = out + READS[name](root, x)
    return out
