"""How often programs are traced as people write them: a table of steps, their results, and the traces made by then.

What a function does not use splits no trace. What it uses and has changed is a trace, and going back is none.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

from statetransform import Param, State, inspect, policies, transform

X = jnp.ones(4)
Step = tuple[Callable[[], Any], Any, int]  # a call, what it gives (None: not looked at), the traces made by then
Program = Callable[[], tuple[Any, list[Step]]]
PROGRAMS: dict[str, Program] = {}


def new(value: Any) -> State:
    return State(jnp.float32(value))


def program(make: Program) -> Program:
    """Takes a program in: it gives the function whose traces count, and the steps."""
    PROGRAMS[make.__name__.replace("_", " ")] = make
    return make


def traces(fun: Any) -> int:
    return len(inspect.explain_retrace(fun))


@pytest.mark.filterwarnings("error::statetransform.RetraceWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_number_of_traces(name: str) -> None:
    fun, steps = PROGRAMS[name]()
    for i, (call, expected, count) in enumerate(steps):
        got = call()
        assert expected is None or float(got) == expected, i
        assert traces(fun) == count, i


# -- objects that differ in what the function does not use


@program
def names_in_errors_loggers_and_counters() -> Any:
    class Layer:
        count = itertools.count()

        def __init__(self) -> None:
            self.index = next(Layer.count)
            self.name, self.log = f"layer{self.index}", logging.getLogger(f"layer{self.index}")
            self.w, self.calls, self.history = Param(jnp.eye(4), name=self.name), 0, []
            self.lock, self.array, self.own = threading.Lock(), X * self.index, jax.jit(lambda x: x * self.index)

        @transform.checkpoint
        def __call__(self, x: Any) -> Any:
            if x.shape[-1] != self.w.value.shape[0]:
                raise ValueError(f"{self.name} (number {self.index}): got {x.shape}")
            if self.log.isEnabledFor(logging.DEBUG):
                self.log.debug("called %s %d %s", self.name, self.calls, self.history)
            return jnp.sum(x @ self.w.value)

    def call() -> Any:
        layer = Layer()
        out = layer(X)
        layer.calls += 1
        layer.history.append(out)
        return out

    return Layer.__call__, [(call, 4, 1)] * 10


def heun(f: Any, u: Any, dt: Any) -> Any:
    k = f(u)
    return u + dt / 2 * (k + f(u + dt * k))


class Scheme(enum.Enum):
    EULER = "euler"
    HEUN = "heun"


SCHEMES = {Scheme.EULER: lambda f, u, dt: u + dt * f(u), Scheme.HEUN: heun}


@program
def simulators_with_a_frozen_config_losses_and_a_cache() -> Any:
    @dataclasses.dataclass(frozen=True)
    class Config:
        scheme: Scheme
        out_dir: str

    class Simulator:
        instances = 0

        def __init__(self, scheme: Scheme) -> None:
            Simulator.instances += 1
            self.cfg, self.losses, self.steps, self._cache = Config(scheme, f"{Simulator.instances}"), [], 0, {}
            self.u, self.k = State(jnp.ones(8)), np.fft.fftfreq(8).astype(np.float32)

        @transform.jit
        def advance(self) -> Any:
            if not isinstance(self.cfg, Config):
                raise TypeError(f"{self.cfg!r}")
            rhs = lambda u: jnp.fft.ifft(2j * self.k * jnp.fft.fft(u)).real
            self.u.value = SCHEMES[self.cfg.scheme](rhs, self.u.value, 0.1)
            return (self.u.value**2).sum()

        def run(self) -> None:
            for _ in range(3):
                self.losses.append(float(self.advance()))
                self.steps += 1
                self._cache[self.steps] = self.losses[-1]

    run = lambda scheme, count: (lambda: Simulator(scheme).run(), None, count)
    return Simulator.advance, [run(Scheme.HEUN, 1)] * 10 + [run(Scheme.EULER, 2), run(Scheme.HEUN, 2)]


@program
def children_under_computed_names() -> Any:
    class Module:
        def __init__(self) -> None:
            object.__setattr__(self, "_children", {})
            self.training = True

        def __setattr__(self, name: str, value: Any) -> None:
            if isinstance(value, Module):
                self._children[name] = value
            object.__setattr__(self, name, value)

        def __call__(self, *args: Any) -> Any:
            return self.forward(*args)  # type: ignore[attr-defined]

    class Linear(Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.w, self.name = Param(jnp.eye(4)), name

        def forward(self, x: Any) -> Any:
            return x @ self.w.value

    class Block(Module):
        serial = 0

        def __init__(self) -> None:
            super().__init__()
            Block.serial += 1
            self.act, self.depth = "relu", 2
            for i in range(2):
                setattr(self, f"fc{i}", Linear(f"block{Block.serial}.fc{i}"))

        @transform.checkpoint
        def forward(self, x: Any) -> Any:
            for i in range(self.depth):
                x = getattr(jax.nn, self.act)(getattr(self, f"fc{i}")(x))
            return x.sum() * (0.5 if self.training else 1.0)

    tested = Block()
    tested.training = False
    return Block.forward, [(lambda: Block()(X), 2, 1)] * 5 + [(lambda: tested(X), 4, 2), (lambda: Block()(X), 2, 2)]


@program
def caches_that_fill_in_the_first_trace_cost_one_for_each_object() -> Any:
    class Grid:
        def __init__(self) -> None:
            self.n, self.u, self._tables = 8, State(jnp.ones(8)), dict[int, Any]()

        @functools.cached_property
        def k(self) -> Any:
            return np.ones(self.n)

        def table(self, order: int) -> Any:
            if order not in self._tables:
                self._tables[order] = np.arange(self.n) ** order
            return self._tables[order]

        @transform.jit
        def slope(self, x: Any) -> Any:
            return (self.u.value * self.k * self.table(2) * x).sum()

    one, two = Grid(), Grid()
    calls = [(lambda: one.slope(1.0), 140, 1), (lambda: one.slope(1.0), 140, 2), (lambda: two.slope(1.0), 140, 3)]
    return Grid.slope, [*calls, *[(lambda: two.slope(1.0), 140, 3)] * 2]


@program
def layers_with_a_set_of_states() -> Any:
    class Layer:
        def __init__(self, *more: State) -> None:
            self.parts = {*(State(jnp.ones(n)) for n in (1, 2, 3, 4)), *more}

        @transform.checkpoint
        def __call__(self, x: Any) -> Any:
            return sum(s.value.sum() for s in self.parts) * x

    larger = Layer(State(jnp.ones(5)))
    return Layer.__call__, [(lambda: Layer()(2.0), 20, 1)] * 50 + [(lambda: larger(2.0), 30, 2)]


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "checkpoint": lambda f: transform.checkpoint(f),
    "policy": lambda f: transform.checkpoint(f, policy=policies.save_larger_than("1 KiB")),
    "lift": lambda f: transform.lift(jax.jit)(f),
    "jit": lambda f: transform.jit(f),
}


def wrappers_made_in_init(make: Any) -> Any:
    """Methods that are wrapped for each instance."""

    class Layer:
        def __init__(self) -> None:
            self.w = State(X)
            self.f = make(self.call)

        def call(self, x: Any) -> Any:
            return checkpoint_name(x * self.w.value, "a")

    use = transform.jit(lambda layer, x: layer.f(x).sum())
    return use, [(lambda: use(Layer(), 1.0), 4, 1)] * 4


PROGRAMS.update({
    f"wrappers made in init, {name}": functools.partial(wrappers_made_in_init, make) for name, make in WRAPPERS.items()
})  # fmt: skip


@program
def new_objects_at_the_address_of_old_ones_are_others() -> Any:
    class Cell:
        __slots__ = ("__weakref__", "scale", "u", *(f"unused_{i}" for i in range(50)))  # a size of its own

        def __init__(self, scale: float) -> None:
            self.u, self.scale = new(0), scale

        @transform.jit
        def step(self, x: Any) -> Any:
            return self.u.value + x * self.scale

    addresses: set[int] = set()

    def call(scale: float) -> Any:
        cell = Cell(scale)
        addresses.add(id(cell))
        return cell.step(1.0)  # no RetraceWarning

    steps: list[Step] = [(lambda i=i: call(float(i)), i, i) for i in range(1, 6)]
    return Cell.step, [*steps, (lambda: len(addresses) < 5, True, 5)]


# -- what counts: types and static values, and the way back


@program
def going_back_to_an_earlier_structure() -> Any:
    s = State({"a": jnp.float32(1)})
    f = transform.jit(lambda x: x * sum(jnp.sum(v) for v in s.value.values()))
    one = jnp.float32(1)
    forms = [({"a": one}, 1), ({"a": one, "b": jnp.ones(3)}, 4), ({"a": jnp.ones((2, 2))}, 4)]
    use = lambda form: (setattr(s, "value", form), f(1.0))[1]
    first = [(lambda form=form: use(form), total, i + 1) for i, (form, total) in enumerate(forms)]
    return f, [*first, *[(lambda form=form: use(form), total, 3) for form, total in forms * 2]]


@program
def a_static_state() -> Any:
    mode = State("double", static=True)
    f = transform.checkpoint(lambda x: 2 * x if mode.value == "double" else -x)
    use = lambda value: lambda: (setattr(mode, "value", value), f(1.0))[1]
    steps = [(use("double"), 2, 1), (use("negate"), -1, 2), (use("double"), 2, 2), (use("negate"), -1, 2)]
    return f, [*steps, (use(1), -1, 3), (use(1.0), -1, 4), (use(True), -1, 5)]


@program
def a_signature_that_uses_more_states_than_the_first_one() -> Any:
    a, b = new(1), new(10)

    @transform.jit
    def f(x: Any) -> Any:
        if jnp.ndim(x):
            b.value = b.value + a.value
        else:
            a.value = a.value + 1.0
        return a.value + b.value

    small, large = (lambda: f(jnp.float32(0))), (lambda: f(jnp.ones(2)))
    return f, [(small, 12, 1), (large, 14, 2), (small, 15, 2), (large, 18, 2)]


@program
def cleared_caches() -> Any:
    s = new(0)

    @transform.jit
    def f(x: Any) -> Any:
        s.value = s.value + x
        return s.value

    return f, [
        (lambda: f(1.0), 1, 1), (lambda: f(1.0), 2, 1), (lambda: (f.clear_cache(), f(1.0))[1], 3, 1),
        (lambda: f(1.0), 4, 1), (lambda: (jax.clear_caches(), f(1.0))[1], 5, 2), (lambda: f(1.0), 6, 2),
    ]  # fmt: skip


def test_x64_on_and_off_are_different_traces() -> None:
    s = State(1.5)
    f = transform.jit(lambda x: s.value * x)
    assert f(2.0).dtype == jnp.float32
    with jax.enable_x64(True):
        assert f(2.0).dtype == jnp.float64
        s.value = jnp.float64(1) / 3
        assert f(2.0) == 2 / 3
    s.value = 1.5
    assert f(2.0).dtype == jnp.float32


TWINS: dict[str, tuple[Any, Any]] = {
    "jit": (transform.jit, jax.jit),
    "checkpoint": (transform.checkpoint, jax.checkpoint),
    "jit of checkpoint": (lambda f: transform.jit(transform.checkpoint(f)), lambda f: jax.jit(jax.checkpoint(f))),
    "grad of jit": (
        lambda f: transform.grad(transform.jit(f)),
        lambda f: jax.grad(jax.jit(f), argnums=1, has_aux=True),
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_wrappers_made_anew_trace_as_often_as_those_of_jax(name: str) -> None:
    runs, reference, s = [0], [0], new(1)
    ours, theirs = TWINS[name]

    def f(x: Any) -> Any:
        runs[0] += 1
        s.value = s.value + 1.0
        return s.value * x

    def twin(s: Any, x: Any) -> Any:
        reference[0] += 1
        return (s + 1.0) * x, s + 1.0

    value = jnp.float32(1)
    for _ in range(3):
        ours(f)(2.0)
        _, value = theirs(twin)(value, 2.0)
    assert s.value == value
    assert runs == reference


def test_wrappers_made_anew_with_other_options_do_not_mix() -> None:
    s, other = new(2), new(5)
    f = lambda x, n: s.value * x * (n if isinstance(n, int) else 100)
    for wrap in (transform.jit, transform.checkpoint):
        assert wrap(f, static_argnums=1)(1.0, 3) == 6.0
        assert wrap(f)(1.0, 3) == 200.0
        assert wrap(f, static_argnums=1)(1.0, 3) == 6.0
    g = lambda x: s.value * other.value * x
    assert transform.checkpoint(g, states=s)(1.0) == transform.checkpoint(g)(1.0) == 10.0
    assert transform.grad(transform.checkpoint(g), states=other)(1.0) == 2.0


# -- traces within traces


def test_models_of_equinox_are_traced_once() -> None:
    eqx = pytest.importorskip("equinox")

    class Held:
        def __init__(self, name: str) -> None:
            net = eqx.nn.MLP(4, 4, 8, 2, key=jax.random.key(0))
            params, self.static = eqx.partition(net, eqx.is_array)
            self.p, self.name = State(params), name

        @transform.jit
        def step(self, x: Any) -> Any:
            return eqx.combine(self.p.value, self.static)(x)

    for i in range(3):
        Held(f"e{i}").step(X)
    assert traces(Held.step) == 1
