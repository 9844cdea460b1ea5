"""Guarantee 5: under `jit` the compiled program is that of the hand-threaded function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import transform

from ..cases import BY_NAME as CASES
from ..cases import Case
from ..tables import BY_NAME, apply_jax, apply_ours

X = jnp.float32(1.5)
PROGRAMS = [
    ("accumulate", ["checkpoint"]),
    ("accumulate", ["grad", "scan", "checkpoint"]),
    ("dropout", ["grad", "checkpoint"]),
    ("two writes", ["scan", "cond"]),
    ("pytree", ["for_loop", "checkpoint"]),
    ("counter", ["vmap", "checkpoint"]),
    ("reads in a raw loop", ["grad", "checkpoint"]),
]


def compile_both(case: Case, names: list[str]) -> tuple[Any, Any]:
    rows = tuple(BY_NAME[name] for name in names)
    states = case.states()
    ours = transform.jit(apply_ours(rows, case.make(states))).lower(X).compile()

    def by_hand(values: Any, x: Any) -> Any:  # who threads by hand carries what is written and returns only that
        constants = {name: value for name, value in values.items() if name == "w"}
        written = {name: value for name, value in values.items() if name != "w"}

        def twin(written: Any, x: Any) -> Any:
            out, new = case.twin({**constants, **written}, x)
            return out, {name: new[name] for name in written}

        return apply_jax(rows, twin)(written, x)

    return ours, jax.jit(by_hand).lower(case.initial(), X).compile()


@pytest.mark.optimized
@pytest.mark.parametrize(("name", "names"), PROGRAMS, ids=lambda value: str(value))
def test_operations_and_memory_are_those_of_the_twin(name: str, names: list[str]) -> None:
    ours, twin = compile_both(CASES[name], names)
    for key in ("flops", "bytes accessed"):
        assert ours.cost_analysis().get(key) == twin.cost_analysis().get(key)
    for part in ("temp", "argument", "output"):  # a state that is only read is not among the outputs
        assert len({getattr(c.memory_analysis(), f"{part}_size_in_bytes") for c in (ours, twin)}) == 1
    instructions = [text.count(" = ") for text in (ours.as_text(), twin.as_text())]
    assert instructions[0] == instructions[1]
