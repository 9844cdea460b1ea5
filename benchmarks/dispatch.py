"""Compiled calls on a known signature: `python -m benchmarks.dispatch`.

The floor is the hand-threaded call with the same options. Each row is one way to reach the states and call. Both
programs of a pair take part in the same run, in turns; what is printed is the median of the ratios of a round.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from statetransform import RandomState, State, transform

from .timing import Run, ratios, show

SIZES = (1, 30, 1000)
Pair = tuple[Run, Run]


class Model:
    """N scalar states in a list, all written by a call."""

    def __init__(self, n: int) -> None:
        self.cells = [State(jnp.float32(i)) for i in range(n)]

    def plain(self, x: Any) -> None:
        add(self.cells, x)

    @transform.jit
    def method(self, x: Any) -> None:
        add(self.cells, x)


class Layer:
    """A state with plain attributes that the call looks at."""

    def __init__(self, i: int) -> None:
        self.w = State(jnp.float32(i))
        self.order, self.training = 2, True


class Layers:
    """N layers with a state each."""

    def __init__(self, n: int) -> None:
        self.cells = [Layer(i) for i in range(n)]

    def plain(self, x: Any) -> None:
        add_layers(self.cells, x)

    @transform.jit
    def method(self, x: Any) -> None:
        add_layers(self.cells, x)


def add(cells: Sequence[Any], x: Any) -> None:
    """The work of every call: one addition to each state."""
    for cell in cells:
        cell.value = cell.value + x


def add_layers(layers: Sequence[Any], x: Any) -> None:
    """The same, by way of the layers."""
    for layer in layers:
        if layer.training and layer.order == 2:
            layer.w.value = layer.w.value + x


def hand(n: int, *, donates: bool = False, keyword: bool = False, groups: int = 1) -> Run:
    """The hand-threaded call: lists of arrays that are stored again."""
    held = {"values": [[jnp.float32(i) for i in range(n)] for _ in range(groups)]}
    options: dict[str, Any] = {"donate_argnums": tuple(range(groups))} if donates else {}
    x = jnp.float32(1)
    if groups == 1:
        single = jax.jit(lambda values, x: [value + x for value in values], **options)
        held["values"] = held["values"][0]  # type: ignore[assignment]

        def run() -> None:
            values = held["values"]
            held["values"] = single(values, x=x) if keyword else single(values, x)

        return run
    double = jax.jit(lambda a, b, x: ([value + x for value in a], [value + x for value in b]), **options)

    def run_two() -> None:
        held["values"] = double(*held["values"], x)

    return run_two


def closure(n: int, make: Any = Model) -> Pair:
    """A function that closes over the states."""
    x, model = jnp.float32(1), make(n)
    body = model.plain
    ours = transform.jit(lambda x: body(x)) if make is Layers else _over(model.cells)
    return lambda: ours(x), hand(n)


def _over(cells: list[State]) -> Callable[[Any], None]:
    @transform.jit
    def function(x: Any) -> None:
        add(cells, x)

    return function


def second_signature(n: int) -> Pair:
    """A closure that was called with an argument of another type before."""
    x, ours = jnp.float32(1), _over(Model(n).cells)
    ours(jnp.int32(1))
    return lambda: ours(x), hand(n)


def method(n: int, make: Any = Model) -> Pair:
    """A decorated method."""
    x, model = jnp.float32(1), make(n)
    return lambda: model.method(x), hand(n)


def bound_method(n: int, make: Any = Model) -> Pair:
    """`jit(model.plain)`."""
    x, ours = jnp.float32(1), transform.jit(make(n).plain)
    return lambda: ours(x), hand(n)


def model_argument(n: int, make: Any = Model) -> Pair:
    """A model passed by reference."""
    x, model = jnp.float32(1), make(n)
    ours = transform.jit(lambda model, x: model.plain(x))
    return lambda: ours(model, x), hand(n)


def list_of_states(n: int) -> Pair:
    """A list of states as an argument."""
    x, cells, ours = jnp.float32(1), Model(n).cells, transform.jit(add)
    return lambda: ours(cells, x), hand(n)


def two_models(n: int) -> Pair:
    """Two models passed by reference; the states in all are N, or two."""
    x, a, b = jnp.float32(1), Model((n + 1) // 2), Model((n + 1) // 2)
    ours = transform.jit(lambda a, b, x: (a.plain(x), b.plain(x))[0])
    return lambda: ours(a, b, x), hand((n + 1) // 2, groups=2)


def keyword_arguments(n: int) -> Pair:
    """The array passed by name."""
    x, ours = jnp.float32(1), _over(Model(n).cells)
    return lambda: ours(x=x), hand(n, keyword=True)  # type: ignore[call-arg]


def static_arguments(n: int) -> Pair:
    """A static argument behind the array."""
    x, cells = jnp.float32(1), Model(n).cells
    ours = transform.jit(lambda x, sign: add(cells, x if sign == "plus" else -x), static_argnums=1)
    return lambda: ours(x, "plus"), _hand_static(n)


def static_states(n: int) -> Pair:
    """A static state that Python decides on; by hand it is a static argument."""
    x, cells, sign = jnp.float32(1), Model(n).cells, State("plus", static=True)
    ours = transform.jit(lambda x: add(cells, x if sign.value == "plus" else -x))
    return lambda: ours(x), _hand_static(n)


def _hand_static(n: int) -> Run:
    held = {"values": [jnp.float32(i) for i in range(n)]}
    x = jnp.float32(1)
    body = lambda values, x, sign: [value + (x if sign == "plus" else -x) for value in values]
    single = jax.jit(body, static_argnums=2)

    def run() -> None:
        held["values"] = single(held["values"], x, "plus")

    return run


def donated_states(n: int) -> Pair:
    """`donate_states=True`."""
    x, cells = jnp.float32(1), Model(n).cells
    ours = transform.jit(lambda x: add(cells, x), donate_states=True)
    return lambda: ours(x), hand(n, donates=True)


def dict_as_value(n: int) -> Pair:
    """States that hold a dict of two arrays."""
    x = jnp.float32(1)
    make = lambda: [{"a": jnp.float32(i), "b": jnp.float32(-i)} for i in range(n)]
    bump = lambda value, x: {"a": value["a"] + x, "b": value["b"]}
    cells, held = [State(value) for value in make()], {"values": make()}

    @transform.jit
    def ours(x: Any) -> None:
        for cell in cells:
            cell.value = bump(cell.value, x)

    single = jax.jit(lambda values, x: [bump(value, x) for value in values])

    def run() -> None:
        held["values"] = single(held["values"], x)

    return lambda: ours(x), run


def random_state(n: int) -> Pair:
    """A `RandomState` beside the N states."""
    x, cells, rng = jnp.float32(1), Model(n).cells, RandomState(0)
    held: dict[str, Any] = {"values": [jnp.float32(i) for i in range(n)], "key": rng.key}

    @transform.jit
    def ours(x: Any) -> None:
        add(cells, x + jax.random.normal(rng.split()))

    @jax.jit
    def single(values: Any, key: Any, x: Any) -> Any:
        key, here = jax.random.split(key)
        x = x + jax.random.normal(here)
        return [value + x for value in values], key

    def run() -> None:
        held["values"], held["key"] = single(held["values"], held["key"], x)

    return lambda: ours(x), run


def functionalized(n: int) -> Pair:
    """`jax.jit(functionalize(f).apply)`, with `Values` threaded by hand."""
    x, cells = jnp.float32(1), Model(n).cells
    pure = transform.functionalize(lambda x: add(cells, x))
    apply, held = jax.jit(pure.apply), {"values": pure.values(x)}

    def run() -> None:
        _, held["values"] = apply(held["values"], x)

    return run, hand(n)


WAYS: tuple[Callable[..., Pair], ...] = (
    closure, method, bound_method, model_argument, list_of_states, two_models, keyword_arguments, static_arguments,
    static_states, donated_states, dict_as_value, random_state, functionalized, second_signature,
)  # fmt: skip
OWN_OBJECTS = (closure, method, bound_method, model_argument)


def settled(run: Run, n: int) -> Run:
    """Calls until the way in is written down, which takes a tenth as many calls as it has edges."""
    for _ in range(3 + n):
        run()
    return run


def dispatch(sizes: Sequence[int] = SIZES, chosen: Sequence[str] = ()) -> None:
    """The table; wanted at one state are 1.25 for closures and 1.35 for others; from 30 on 1.08, 1.15 with objects."""
    rows: dict[str, dict[str, str]] = {}
    cases = [(way.__name__, way, {}) for way in WAYS]
    cases += [(f"{way.__name__}, states in objects of their own", way, {"make": Layers}) for way in OWN_OBJECTS]
    for label, way, options in cases:
        if chosen and not any(name in label for name in chosen):
            continue
        row = rows[label.replace("_", " ")] = {}
        for n in sizes:
            ours, by_hand = way(n, **options)
            found = ratios({"ours": settled(ours, n), "by hand": settled(by_hand, 1)}, "by hand")
            row[f"N = {n}"] = f"{found['ours']:.2f}"
    show("Dispatch: time of a compiled call over that of the hand-threaded one", rows)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    dispatch(numbers or SIZES, [word for word in sys.argv[1:] if not word.isdigit()])
