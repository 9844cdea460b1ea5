"""A traced value that stays behind in an object of the user's is an error that names the place."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import State, StateTraceError, transform

from ..tables import ONCE


class Model:
    def __init__(self) -> None:
        self.u = State(jnp.float32(2))
        self.last: Any = None
        self.items: list[Any] = [1, "a", [2]]
        self.many: list[Any] = list(range(40))
        self.table: dict[str, Any] = {"a": 1}
        self.queue: Any = collections.deque([1], maxlen=2)
        self.options, self.module = types.SimpleNamespace(items=[]), types.ModuleType("module")
        self.chain, self.array = collections.ChainMap({}), np.array([None], object)


def in_a_box(x: Any) -> Any:
    box: Any = Box()
    box.x = (x, 1)
    return box


LEAKS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "set": ("'last' of an instance of Model", lambda m, x: setattr(m, "last", x)),
    "append": ("'items' of an instance of Model", lambda m, x: m.items.append(x)),
    "replace an item": ("'items' of an instance of Model", lambda m, x: m.items.__setitem__(0, x)),
    "in a pytree": ("'items' of an instance of Model", lambda m, x: m.items.append({"x": [x]})),
    "append to many": ("'many' of an instance of Model", lambda m, x: m.many.append(x)),
    "a new key": ("'table' of an instance of Model", lambda m, x: m.table.update(b=x)),
    "an old key": ("'table' of an instance of Model", lambda m, x: m.table.update(a=x)),
    "push": ("'queue' of an instance of Model", lambda m, x: m.queue.append(x)),
    "an object made inside": (
        "attribute 'x' of an instance of Box(.|\n)*last.x",
        lambda m, x: setattr(m, "last", in_a_box(x)),
    ),
    "one in a list": ("'x' of an instance of Box(.|\n)*items.*x", lambda m, x: m.items.append(in_a_box(x))),
    "a namespace": ("'z' of an instance of SimpleNamespace", lambda m, x: setattr(m.options, "z", x)),
    "in a namespace": ("'items' of an instance of SimpleNamespace", lambda m, x: m.options.items.append(x)),
    "a module": ("'z' of the module ", lambda m, x: setattr(m.module, "z", x)),
    "a chain of mappings": ("'maps' of an instance of ChainMap", lambda m, x: m.chain.update(z=x)),
    "an array of objects": ("'array' of an instance of Model", lambda m, x: m.array.fill(x)),
    "a function": ("'last' of an instance of Model", lambda m, x: setattr(m, "last", lambda: x)),
    "a generator": (
        "attribute 'last' of an instance of Model",
        lambda m, x: setattr(m, "last", (x * i for i in range(2))),
    ),
    "an exception": ("'last' of an instance of Model", lambda m, x: setattr(m, "last", ValueError("x", x))),
}


#: Transforms that run the function directly, and those that stage it.
DIRECT: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    **{name: ONCE[name] for name in ("value_and_grad", "vjp", "jvp", "linearize")},
    "grad": transform.grad,
    "vmap": lambda f: lambda x: transform.vmap(f)(x[None]),
    "hessian": transform.hessian,
    "grad of grad": lambda f: transform.grad(transform.grad(f)),
}
WAYS: dict[str, Callable[[Any], Callable[[Any], Any]]] = DIRECT | {
    **{name: ONCE[name] for name in ("jit", "checkpoint")},
    "loop": lambda f: transform.jit(lambda x: transform.fori_loop(0, 2, lambda i, c: f(c), x)),
}
OF_AN_ARGUMENT: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "jit of an argument": lambda f: functools.partial(transform.jit(f.func), *f.args),
    "checkpoint of an argument": lambda f: functools.partial(transform.checkpoint(f.func), *f.args),
}


@pytest.mark.parametrize("way", DIRECT)
def test_what_a_direct_transform_puts_somewhere_and_takes_away_again_is_no_error(way: str) -> None:
    model = Model()

    def body(x: Any) -> Any:
        model.last = model.u.value * x
        out = model.last * x
        model.last = None
        return out

    DIRECT[way](body)(jnp.float32(3))


def test_a_traced_value_that_was_there_before_is_none() -> None:
    model = Model()

    def outer(x: Any) -> Any:
        model.items = [x]
        try:
            return transform.checkpoint(lambda m: m.items[0] * m.u.value)(model)
        finally:
            model.items = []

    assert float(transform.grad(outer)(3.0)) == 2


class Shared:
    last: Any = None
    table: ClassVar[dict[str, Any]] = {"a": 1}

    def on_the_class(self, x: Any) -> None:
        Shared.last = x

    def on_its_type(self, x: Any) -> None:
        type(self).last = x

    @classmethod
    def as_class_method(cls, x: Any) -> None:
        cls.last = {"x": [x]}


TABLE: dict[str, Any] = {"a": 1, "inner": {"b": 2}}


def on_itself(x: Any) -> None:
    on_itself.last = x  # type: ignore[attr-defined]


def of_a_closure(memory: Any, put: Callable[[Any, Any], None]) -> Callable[[Any], None]:
    return lambda x: put(memory, x)


OUTSIDE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "class": ("'last' of the class Shared", Shared().on_the_class),
    "type": ("'last' of the class Shared", Shared().on_its_type),
    "class method": ("'last' of the class Shared", Shared.as_class_method),
    "dict of a class": ("'table' of", lambda x: Shared.table.__setitem__("b", x)),
    "new": ("'other' of the class Shared", lambda x: setattr(Shared, "other", x)),
    "global": ("`TABLE`", lambda x: TABLE.__setitem__("x", x)),
    "global below": (r"\['inner'\]", lambda x: TABLE["inner"].update(b=x)),
    "function": ("'last' of the function on_itself", on_itself),
    "default": ("dict|tuple|`memory`", lambda x, memory={}: memory.update(x=x)),
    "closure": ("`memory`", of_a_closure(collections.OrderedDict(a=1), lambda memory, x: memory.update(x=[x]))),
    "deque": (r"at `memory\[\d+\]`", of_a_closure(collections.deque(), lambda items, x: items.append(x))),
    "list in a dict": (r"at `memory\['a'\]\[\d+\]`", of_a_closure({"a": [1]}, lambda items, x: items["a"].append(x))),
    "object in a list": (
        "attribute 'x' of an instance of Box",
        of_a_closure([], lambda items, x: items.append(in_a_box(x))),
    ),
    "default list": ("`memory`", lambda x, memory=[]: memory.append(x)),
    "global list": (r"at `SEEN\[\d+\]\[1\]`", lambda x: SEEN.append((1, x))),
}


SEEN: list[Any] = []


class Box:
    """Is made inside."""


def in_a_global(x: Any) -> None:
    global LAST
    LAST = x


def in_an_object_in_a_global(x: Any) -> None:
    global LAST
    LAST = Box()
    LAST.inner = [x]


def of_a_variable() -> Callable[[Any], None]:
    kept = None

    def leak(x: Any) -> None:
        nonlocal kept
        kept = x

    return leak


def of_a_variable_set_in_a_lambda() -> Callable[[Any], None]:
    kept: Any = None

    def leak(x: Any) -> None:
        def put(y: Any) -> None:
            nonlocal kept
            kept = {"y": y}

        put(x)

    return leak


LAST: Any = None
OUTSIDE |= {
    "global name": ("`LAST`", in_a_global),
    "object in a global name": (r"at `LAST.inner\[0\]`", in_an_object_in_a_global),
    "nonlocal": ("`kept`", of_a_variable()),
    "nonlocal of an inner function": ("`kept`", of_a_variable_set_in_a_lambda()),
}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    Shared.last, Shared.table = None, {"a": 1}
    TABLE.clear()
    TABLE.update(a=1, inner={"b": 2})
    SEEN.clear()
    vars(on_itself).clear()
    if hasattr(Shared, "other"):
        del Shared.other


LEAKS |= {name: (place, lambda m, x, leak=leak: leak(x)) for name, (place, leak) in OUTSIDE.items()}
FEW = ("jit", "jit of an argument", "grad")


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) for name in LEAKS for way in FEW]
    + [("an object made inside", way) for way in WAYS | OF_AN_ARGUMENT if way not in FEW]
    + [(name, way) for name in ("closure", "global name") for way in ("checkpoint", "loop", "vmap")],
)
def test_a_traced_value_that_stays_behind_is_an_error_that_names_the_place(name: str, way: str) -> None:
    place, leak = LEAKS[name]
    model, x = Model(), jnp.float32(3)

    def body(model: Any, x: Any) -> Any:
        model.u.value = model.u.value * 2
        leak(model, model.u.value * x)
        return x

    for _ in range(2 if name in OUTSIDE else 1):
        with pytest.raises(StateTraceError, match=place):
            (WAYS | OF_AN_ARGUMENT)[way](functools.partial(body, model))(x)
    assert float(model.u.value) == 2


def test_a_list_and_a_dict_outside_may_collect_what_was_not_traced() -> None:
    seen: list[Any] = []
    known: dict[str, Any] = {}
    Shared.last = jnp.float32(1)

    @transform.jit
    def f(x: Any) -> Any:
        seen.append(x.dtype)
        known["shape"] = x.shape
        known["array"] = Shared.last
        Shared.last = None
        return x

    f(jnp.ones(3))
    assert len(seen) == 1 and known["shape"] == (3,) and known["array"] == 1.0 and Shared.last is None


COLLECTED: dict[str, Callable[[Any, Any], None]] = {
    "by itself": lambda seen, x: seen.append(x),
    "with a label": lambda seen, x: seen.append(("x", {"value": [x]})),
    "below": lambda seen, x: seen[0].append(x),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", COLLECTED)
def test_a_list_in_a_closure_may_collect_traced_values(how: str, way: str) -> None:
    seen: list[Any] = [[]]
    u = State(jnp.float32(2))

    def body(x: Any) -> Any:
        u.value = u.value * 2
        COLLECTED[how](seen, u.value * x)
        return u.value * x

    def expected(x: Any) -> Any:
        return 2 * value * x

    call, value = WAYS[way](body), u.value
    for _ in range(3):
        got, value = jax.tree.leaves(call(jnp.float32(3))), u.value / 2
        want = jax.tree.leaves(WAYS[way](expected)(jnp.float32(3)))
        assert way in ("loop", "jvp", "grad of grad", "hessian") or got == want
    tracers = [leaf for leaf in jax.tree.leaves(seen) if isinstance(leaf, jax.core.Tracer)]
    assert tracers
    with pytest.raises(jax.errors.UnexpectedTracerError):
        jax.jit(lambda: tracers[0] + 1)()


class Noting(State):
    last: Any = None


def test_an_attribute_of_a_state_and_a_method_of_a_list_are_places_as_well() -> None:
    noting, seen = Noting(jnp.float32(2)), list[Any]()
    record = seen.append
    for leak, place in (
        (lambda x: setattr(noting, "last", x), "instance of Noting"),
        (record, "`record`"),
    ):

        def body(x: Any, leak: Any = leak) -> Any:
            leak(noting.value * x)
            noting.value = x
            return record and x

        for way in ("jit", "checkpoint", "loop", "grad"):
            with pytest.raises(StateTraceError, match=place):
                WAYS[way](body)(jnp.float32(3))
            noting.last = None
            seen.clear()
