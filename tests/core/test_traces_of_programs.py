"""How many traces programs make as people write them: what the body does not use splits none."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import itertools
import logging
import operator
import types
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import Param, RetraceWarning, State, inspect, transform

N = 10
X = jnp.ones(4)
pytestmark = pytest.mark.filterwarnings("error::statetransform.RetraceWarning")


def traces(fun: Any) -> int:
    """How often a function was traced."""
    return len(inspect.explain_retrace(fun))


class Layer:
    """Names, indices, loggers and counters that stand in errors and in branches that are not taken."""

    count = itertools.count()

    def __init__(self, n: int = 4) -> None:
        self.index = next(Layer.count)
        self.name, self.log = f"layer{self.index}", logging.getLogger(f"layer{self.index}")
        self.w, self.calls, self.history = Param(jnp.eye(n), name=self.name), 0, []

    @transform.checkpoint
    def __call__(self, x: Any) -> Any:
        """A layer."""
        if x.shape[-1] != self.w.value.shape[0]:
            raise ValueError(f"{self.name} (number {self.index}): got {x.shape}")
        if self.log.isEnabledFor(logging.DEBUG):
            self.log.debug("called %s %d %s", self.name, self.calls, self.history)
        return jnp.tanh(x @ self.w.value)

    def __repr__(self) -> str:
        return f"Layer({self.name}, {self.index}, {self.calls}, {self.history})"


def test_names_in_errors_loggers_and_counters() -> None:
    for layer in [Layer() for _ in range(N)]:
        layer(X)
        layer.calls += 1
        layer.history.append(1.0)
    assert traces(Layer.__call__) == 1


def euler(f: Any, u: Any, dt: Any) -> Any:
    """One step."""
    return u + dt * f(u)


def heun(f: Any, u: Any, dt: Any) -> Any:
    """A better one."""
    k = f(u)
    return u + dt / 2 * (k + f(u + dt * k))


class Scheme(enum.Enum):
    """Looked up in a registry."""

    EULER = "euler"
    HEUN = "heun"

    def step(self, f: Any, u: Any, dt: Any) -> Any:
        """By the registry."""
        return SCHEMES[self](f, u, dt)


SCHEMES = {Scheme.EULER: euler, Scheme.HEUN: heun}


@dataclasses.dataclass(frozen=True)
class Config:
    """Of a simulator."""

    n: int = 8
    scheme: Scheme = Scheme.HEUN
    out_dir: str = "runs"


class Simulator:
    """A frozen config, an array of NumPy, losses, a cache, counters."""

    instances = 0

    def __init__(self, cfg: Config, name: str) -> None:
        Simulator.instances += 1
        self.cfg, self.name, self.losses, self.steps, self._cache = cfg, name, [], 0, {}
        self.u, self.k = State(jnp.ones(cfg.n)), np.fft.fftfreq(cfg.n).astype(np.float32)

    @transform.jit
    def advance(self) -> Any:
        """One step."""
        if not isinstance(self.cfg, Config):
            raise TypeError(f"{self.name}: {self.cfg!r}")
        rhs = lambda u: jnp.fft.ifft(2j * self.k * jnp.fft.fft(u)).real
        self.u.value = self.cfg.scheme.step(rhs, self.u.value, 0.1)
        return (self.u.value**2).sum()

    def run(self) -> None:
        """Some steps."""
        for _ in range(3):
            self.losses.append(float(self.advance()))
            self.steps += 1
            self._cache[self.steps] = self.losses[-1]


def test_simulators_of_one_class_and_of_two_schemes() -> None:
    for i in range(N):
        Simulator(Config(out_dir=f"runs{i}"), f"sim{i}").run()
    assert traces(Simulator.advance) == 1
    for scheme in (Scheme.EULER, Scheme.HEUN, Scheme.EULER):
        Simulator(Config(scheme=scheme), scheme.name).run()
    assert traces(Simulator.advance) == 2


class Module:
    """As in torch: children by name, `vars`, computed names."""

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
    """A child."""

    def __init__(self, n: int, name: str) -> None:
        super().__init__()
        self.w, self.name = Param(jnp.eye(n)), name

    def forward(self, x: Any) -> Any:
        """Applies it."""
        return x @ self.w.value


class Block(Module):
    """With children that are found by computed names."""

    serial = 0

    def __init__(self, n: int) -> None:
        super().__init__()
        Block.serial += 1
        self.id, self.act, self.depth = Block.serial, "gelu", 2
        for i in range(2):
            setattr(self, f"fc{i}", Linear(n, f"block{self.id}.fc{i}"))

    @transform.checkpoint
    def forward(self, x: Any) -> Any:
        """Applies it."""
        for i in range(self.depth):
            x = getattr(jax.nn, self.act)(getattr(self, f"fc{i}")(x))
        return x * (0.9 if self.training else 1.0)


def test_computed_names_of_attributes() -> None:
    blocks = [Block(4) for _ in range(N)]
    for block in blocks:
        block(X)
    assert traces(Block.forward) == 1
    blocks[3].training = False
    assert float(blocks[3](X)[0]) > float(blocks[2](X)[0])
    assert traces(Block.forward) == 2


class Trainer:
    """Metrics, callbacks, an epoch counter and the best loss."""

    def __init__(self) -> None:
        self.model, self.epoch, self.metrics, self.best = Linear(4, "l"), 0, collections.defaultdict(list), None
        self.callbacks = [lambda loss: self.metrics["loss"].append(loss)]

    @transform.jit
    def step(self, x: Any) -> Any:
        """A step of descent."""
        value, grad = transform.value_and_grad(lambda: (self.model(x) ** 2).mean(), states=self.model.w)()
        self.model.w.value = self.model.w.value - 0.1 * grad
        return value

    def fit(self) -> None:
        """Some steps."""
        for _ in range(3):
            value = float(self.step(X))
            self.epoch += 1
            for call in self.callbacks:
                call(value)
            self.best = value if self.best is None else min(self.best, value)


def test_trainers() -> None:
    for _ in range(3):
        Trainer().fit()
    assert traces(Trainer.step) == 1


class Tagged:
    """Data under the names of methods of dicts and strings, and a counter of its class under another."""

    count = 0

    def __init__(self, i: int) -> None:
        type(self).count += 1
        self.update, self.items, self.w = i, [i], State({"a": jnp.ones(2)})

    @transform.checkpoint
    def __call__(self, x: Any) -> Any:
        """A layer."""
        d = dict(self.w.value)
        d.update(b=x)
        return sum(v.sum() for k, v in d.items()) * "a,b".count(",")


def test_attributes_under_the_names_of_methods_of_others() -> None:
    for i in range(N):
        Tagged(i)(X)
    assert traces(Tagged.__call__) == 1


class Grid:
    """A cached property and a table, which fill in the first trace."""

    def __init__(self, label: str) -> None:
        self.n, self.label, self.u, self._tables = 8, label, State(jnp.ones(8)), dict[int, Any]()

    @functools.cached_property
    def k(self) -> Any:
        """Wave numbers."""
        return np.fft.fftfreq(self.n)

    def table(self, order: int) -> Any:
        """Powers."""
        if order not in self._tables:
            self._tables[order] = np.arange(self.n) ** order
        return self._tables[order]

    @transform.jit
    def slope(self, x: Any) -> Any:
        """Uses both."""
        return self.u.value * self.k * self.table(2) * x


def test_caches_that_fill_in_the_first_trace_cost_one_for_each_object() -> None:
    for i in range(4):
        grid = Grid(f"g{i}")
        for _ in range(3):
            grid.slope(1.0)
    assert traces(Grid.slope) == 5  # four cold ones, and one for all that are warm


class Particle:
    """Sorted by an attribute."""

    def __init__(self, i: int) -> None:
        self.x, self.tag, self.order = State(jnp.float32(i)), f"p{i}", i


def test_sorting_by_an_attribute() -> None:
    @transform.jit
    def energy(world: Any) -> Any:
        return sum(p.x.value**2 for p in sorted(world.ps, key=operator.attrgetter("order")))

    for i in range(4):
        world: Any = Particle(i)
        world.ps = [Particle(i) for i in range(4)]
        energy(world)
    assert traces(energy) == 1


class WithSet:
    """A set of states, of which each is another type."""

    def __init__(self) -> None:
        self.parts = {State(jnp.ones(n)) for n in (1, 2, 3, 4)}

    @transform.checkpoint
    def __call__(self, x: Any) -> Any:
        """Their sum."""
        return sum(s.value.sum() for s in self.parts) * x


def test_equal_layers_with_a_set_of_states() -> None:
    layers = [WithSet() for _ in range(50)]
    assert [float(layer(2.0)) for layer in layers] == [20.0] * 50
    assert traces(WithSet.__call__) == 1
    layers[3].parts.add(State(jnp.ones(5)))
    assert float(layers[3](2.0)) == 30.0


class Step:
    """The name of a counter of a base class is that of a method of another object."""

    step: ClassVar[int] = 0

    def __init__(self) -> None:
        self.inner = types.SimpleNamespace(u=State(jnp.float32(0)), step=lambda x: x)
        Step.step += 1

    @transform.checkpoint
    def run(self, x: Any) -> Any:
        """Calls the method."""
        return self.inner.step(x) + self.inner.u.value


def test_a_counter_of_a_class_under_the_name_of_a_method() -> None:
    for _ in range(6):
        Step().run(1.0)
    assert traces(Step.run) == 1


def test_models_of_equinox() -> None:
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
    assert edges(Held("e").step) < 200


def test_models_of_flax() -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Part(nnx.Module):
        def __init__(self, i: int) -> None:
            rngs = nnx.Rngs(0)
            self.lin, self.norm, self.name = nnx.Linear(4, 4, rngs=rngs), nnx.LayerNorm(4, rngs=rngs), f"b{i}"

        def __call__(self, x: Any) -> Any:
            if x.ndim < 1:
                raise ValueError(self.name)
            return x + nnx.gelu(self.lin(self.norm(x)))

    f = transform.checkpoint(lambda part, x: part(x))
    for i in range(3):
        f(Part(i), X)
    assert traces(f) == 1
    assert edges(lambda x: Part(0)(x)) < 1000


def edges(fun: Any) -> int:
    """How many edges the structure of a function has."""
    found: Any = transform.functionalize(fun).trace(X)
    structure = found.trace.structure
    return 0 if structure is None else len(structure.edges)


def test_an_attribute_that_counts_and_changes_says_so() -> None:
    class Clock:
        def __init__(self) -> None:
            self.u, self.t = State(jnp.float32(0)), 0

        @transform.jit
        def tick(self) -> Any:
            self.t += 1
            return self.u.value

    clock = Clock()
    with pytest.warns(RetraceWarning, match=r"self\.t"):
        for _ in range(4):
            clock.tick()


def test_new_objects_at_the_address_of_old_ones_are_others() -> None:
    class Cell:
        __slots__ = ("__weakref__", "scale", "u", *(f"unused_{i}" for i in range(50)))  # a size of its own

        def __init__(self, scale: float) -> None:
            self.u, self.scale = State(jnp.float32(0)), scale

        @transform.jit
        def step(self, x: Any) -> Any:
            self.u.value = self.u.value + x * self.scale
            return self.u.value

    addresses = set()
    for scale in (1.0, 2.0, 3.0, 4.0, 5.0):
        cell = Cell(scale)
        addresses.add(id(cell))
        assert cell.step(1.0) == scale  # no RetraceWarning
        del cell
    assert len(addresses) < 5
