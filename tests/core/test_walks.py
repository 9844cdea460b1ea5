"""The generated walk over a model: what it does not look at would be stale."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from statetransform import State, transform


class Config:
    gain = 2.0


class Cell:
    def __init__(self, value: float) -> None:
        self.value = State(jnp.float32(value))
        self.flags = {"on": True, "mode": "sum"}


class Layer:
    def __init__(self, i: int, config: Config, n_cells: int) -> None:
        self.w, self.index, self.config = State(jnp.float32(i + 1)), i, config
        self.cells = [Cell(10 * i + j) for j in range(n_cells)]
        self.name = f"layer {i}"

    def forward(self, x: Any) -> Any:
        x = x + self.config.gain * self.w.value * (self.index + 1)
        for cell in self.cells:
            if cell.flags["on"]:
                x = x + cell.value.value
            cell.value.value = cell.value.value + len(self.name)
        return x


class Model:
    def __init__(self, n_layers: int = 6, n_cells: int = 3) -> None:
        self.config = Config()
        self.layers = [Layer(i, self.config, n_cells) for i in range(n_layers)]

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer.forward(x)
        return x


def states(model: Model) -> list[float]:
    cells = [cell.value for layer in model.layers for cell in layer.cells]
    return [float(state.value) for state in [*[layer.w for layer in model.layers], *cells]]


def settled(model: Model) -> Any:
    """A function called until its walk is written down."""
    run = transform.jit(lambda model, x: model.forward(x))
    for _ in range(101):
        run(model, 1.0)
        if run._store.programs[0].way_in is not None:
            break
    assert run._store.programs[0].way_in is not None
    return run


def check(run: Any, model: Model) -> None:
    """Twice, by the compiled function and by a copy of the model in eager mode."""
    twin = copy.deepcopy(model)
    for _ in range(2):
        out, by_hand = run(model, 1.0), twin.forward(jnp.float32(1.0))
        assert float(out) == pytest.approx(float(by_hand), rel=1e-5)
        assert states(model) == states(twin)


def test_another_model_of_the_structure_takes_the_same_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = settled(Model()), Model()
    (program,) = run._store.programs
    monkeypatch.setattr(program.structure, "match", None)  # what a call by another way asks
    check(run, other)


def give_a_config(model: Model) -> None:
    model.layers[4].config = Config()
    model.layers[4].config.gain = -1.0


def swap_two_layers(model: Model) -> None:
    model.layers[3], model.layers[4] = model.layers[4], model.layers[3]


CHANGES: dict[str, Callable[[Model], Any]] = {
    "an index": lambda m: setattr(m.layers[2], "index", 99),
    "the type of an index": lambda m: setattr(m.layers[2], "index", 2.0),
    "a name": lambda m: setattr(m.layers[5], "name", "another"),
    "a flag far below": lambda m: m.layers[4].cells[2].flags.update(on=False),
    "the shared config": lambda m: setattr(m.config, "gain", 3.0),
    "a config of its own": give_a_config,
    "two layers swapped": swap_two_layers,
    "a layer removed": lambda m: m.layers.pop(1),
    "a cell removed": lambda m: m.layers[1].cells.pop(2),
    "a layer twice": lambda m: m.layers.__setitem__(1, m.layers[4]),
    "a shared state": lambda m: setattr(m.layers[1].cells[2], "value", m.layers[5].w),
    "a static state": lambda m: setattr(m.layers[3], "w", State(2.0, static=True)),
    "another state": lambda m: setattr(m.layers[3], "w", State(jnp.float32(-7))),
    "a cell of a subclass": lambda m: m.layers[3].cells.__setitem__(1, type("Other", (Cell,), {})(0.5)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_the_middle_is_seen(change: str) -> None:
    model = Model()
    run = settled(model)
    check(run, model)
    CHANGES[change](model)
    check(run, model)
