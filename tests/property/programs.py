"""Random stateful programs and their hand-threaded twins, both made from one description.

A program maps a scalar to a scalar and reads and writes four states: an array `u`, a dict `p`, a counter `n` and a
random state `rng`. Its description is a tuple of statements; `Stateful` runs it over states with this package's
transforms, `Pure` threads a dict of values through JAX's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as hs

from statetransform import RandomState, State, transform

NAMES = ("u", "p", "n")
Block = tuple["Statement", ...]


@dataclasses.dataclass(frozen=True)
class Statement:
    """One statement.

    Attributes:
      kind: what it does.
      name: the state that it reads or writes.
      number: a coefficient, a threshold or a number of steps.
      blocks: the statements inside.
      how: a transform, or the `checkpoint=` of a loop.
    """

    kind: str
    name: str = ""
    number: float = 0.0
    blocks: tuple[Block, ...] = ()
    how: Any = None


def blocks(depth: int) -> hs.SearchStrategy[Block]:
    """Random blocks, nested at most so deep."""
    number = hs.sampled_from([-0.7, 0.3, 0.5, 1.0])
    name = hs.sampled_from(NAMES)
    simple = hs.one_of(
        hs.builds(Statement, hs.just("read"), name, number),
        hs.builds(Statement, hs.just("update"), name, number),
        hs.builds(Statement, hs.just("draw"), hs.just("rng"), number),
    )
    if depth == 0:
        return hs.lists(simple, max_size=3).map(tuple)
    inner = blocks(depth - 1)
    one, steps = inner.map(lambda block: (block,)), hs.sampled_from([0, 1, 3])
    how = hs.sampled_from([None, "step", 1])
    wrap = hs.sampled_from(["checkpoint", "jit", "named_call"])
    nested = hs.one_of(
        hs.builds(Statement, hs.just("cond"), hs.just(""), hs.sampled_from([-0.2, 0.2]), hs.tuples(inner, inner)),
        hs.builds(Statement, hs.just("switch"), hs.just("n"), hs.just(0.0), hs.tuples(inner, inner, inner)),
        hs.builds(Statement, hs.just("scan"), hs.just(""), steps, one, how),
        hs.builds(Statement, hs.just("fori"), hs.just(""), steps, one, how),
        hs.builds(Statement, hs.just("while"), hs.just(""), steps, one, hs.just(1)),
        hs.builds(Statement, hs.just("wrap"), hs.just(""), hs.just(0.0), one, wrap),
    )
    return hs.lists(hs.one_of(simple, nested), min_size=1, max_size=3).map(tuple)


PROGRAMS = blocks(2)


def initial(key: int = 0) -> dict[str, Any]:
    return {
        "u": jnp.linspace(-1, 1, 3),
        "p": {"a": jnp.array([0.3, -0.2]), "b": jnp.float32(0.1)},
        "n": jnp.int32(0),
        "rng": jax.random.key(key),
    }


def total(value: Any) -> Any:
    return sum(jnp.tanh(jnp.sum(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(value))


def updated(value: Any, x: Any, number: float) -> Any:
    """The value after an update: it keeps its type."""
    if not isinstance(value, dict) and jnp.issubdtype(value.dtype, jnp.integer):
        return value + 1
    return jax.tree.map(lambda leaf: jnp.sin(leaf) + number * x, value)


class Stateful:
    def __init__(self, values: dict[str, Any]) -> None:
        kinds = {"rng": RandomState}
        self.states = {name: kinds.get(name, State)(value, name=name) for name, value in values.items()}

    def values(self) -> dict[str, Any]:
        return {name: state.value for name, state in self.states.items()}

    def function(self, block: Block) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            for statement in block:
                x = jnp.tanh(getattr(self, "_" + statement.kind)(statement, x))
            return x

        return run

    def _read(self, s: Statement, x: Any) -> Any:
        return x + s.number * total(self.states[s.name].value)

    def _update(self, s: Statement, x: Any) -> Any:
        state = self.states[s.name]
        state.value = updated(state.value, x, s.number)
        return x

    def _draw(self, s: Statement, x: Any) -> Any:
        return x + s.number * jax.random.normal(self.states["rng"].split())

    def _cond(self, s: Statement, x: Any) -> Any:
        return transform.cond(x > s.number, *map(self.function, s.blocks), x)

    def _switch(self, s: Statement, x: Any) -> Any:
        return transform.switch(self.states["n"].value % 3, list(map(self.function, s.blocks)), x)

    def _scan(self, s: Statement, x: Any) -> Any:
        body = self.function(s.blocks[0])
        step = lambda x, a: ((y := body(x + a)), y * a)
        x, ys = transform.scan(step, x, jnp.arange(s.number) / 5, checkpoint=s.how)
        return x + ys.sum()

    def _fori(self, s: Statement, x: Any) -> Any:
        body = self.function(s.blocks[0])
        return transform.fori_loop(0, int(s.number), lambda i, x: body(x + i / 5), x, checkpoint=s.how)

    def _while(self, s: Statement, x: Any) -> Any:
        body = self.function(s.blocks[0])
        step = lambda c: (c[0] + 1, body(c[1]))
        return transform.while_loop(lambda c: c[0] < int(s.number), step, (0, x), checkpoint=s.how)[1]

    def _wrap(self, s: Statement, x: Any) -> Any:
        return getattr(transform, s.how)(self.function(s.blocks[0]))(x)


class Pure:
    """Threads values through programs: functions from `(values, x)` to `(values, x)`."""

    def function(self, block: Block) -> Callable[[Any], Any]:
        def run(carry: Any) -> Any:
            for statement in block:
                values, x = getattr(self, "_" + statement.kind)(statement, *carry)
                carry = values, jnp.tanh(x)
            return carry

        return run

    def _read(self, s: Statement, values: Any, x: Any) -> Any:
        return values, x + s.number * total(values[s.name])

    def _update(self, s: Statement, values: Any, x: Any) -> Any:
        return {**values, s.name: updated(values[s.name], x, s.number)}, x

    def _draw(self, s: Statement, values: Any, x: Any) -> Any:
        # as RandomState.split: the first of two keys stays, the second one is given out
        kept, given = jax.random.split(values["rng"])
        return {**values, "rng": kept}, x + s.number * jax.random.normal(given)

    def _cond(self, s: Statement, values: Any, x: Any) -> Any:
        return jax.lax.cond(x > s.number, *map(self.function, s.blocks), (values, x))

    def _switch(self, s: Statement, values: Any, x: Any) -> Any:
        return jax.lax.switch(values["n"] % 3, list(map(self.function, s.blocks)), (values, x))

    def _scan(self, s: Statement, values: Any, x: Any) -> Any:
        body = self.function(s.blocks[0])

        def step(carry: Any, a: Any) -> Any:
            values, x = body((carry[0], carry[1] + a))
            return (values, x), x * a

        (values, x), ys = jax.lax.scan(step, (values, x), jnp.arange(s.number) / 5)
        return values, x + ys.sum()

    def _fori(self, s: Statement, values: Any, x: Any) -> Any:
        body = self.function(s.blocks[0])
        return jax.lax.fori_loop(0, int(s.number), lambda i, c: body((c[0], c[1] + i / 5)), (values, x))

    def _while(self, s: Statement, values: Any, x: Any) -> Any:
        body = self.function(s.blocks[0])
        return jax.lax.fori_loop(0, int(s.number), lambda i, c: body(c), (values, x))  # so that it can be reversed

    def _wrap(self, s: Statement, values: Any, x: Any) -> Any:
        wrap = {"checkpoint": jax.checkpoint, "jit": jax.jit, "named_call": jax.named_call}[s.how]
        return wrap(self.function(s.blocks[0]))((values, x))
