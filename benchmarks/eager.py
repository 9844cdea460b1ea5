"""Eager loops and branches: a second call, over the same body under `jax.jit`: `python -m benchmarks.eager`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from statetransform import State, transform

from .layers import compilations
from .timing import Run, ratios, show

LENGTH = 1000


class Rod:
    """A heated rod: one state, one plain attribute."""

    def __init__(self, n: int = 64) -> None:
        self.u, self.rate = State(jnp.linspace(0.0, 1.0, n)), 0.1

    def step(self, dt: Any, order: int) -> None:
        self.u.value = stepped(self.u.value, dt, order, self.rate)


def stepped(u: Any, dt: Any, order: int, rate: float) -> Any:
    """The same by hand."""
    for _ in range(order):
        u = u + rate * dt * (jnp.roll(u, 1) + jnp.roll(u, -1) - 2 * u)
    return u


def body(u: Any) -> Any:
    return stepped(u, 0.1, 2, 0.1)


def scan(rod: Rod, xs: Any) -> None:
    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        rod.step(0.1, 2)
        return carry + x, None

    transform.scan(step, 0.0, xs)


def for_loop(rod: Rod, xs: Any) -> None:
    del xs
    dt = 0.1
    transform.for_loop(lambda: rod.step(dt, 2), length=LENGTH)


def checkpointed(rod: Rod, xs: Any) -> None:
    del xs
    transform.for_loop(lambda: rod.step(0.1, 2), length=LENGTH, checkpoint=20)


def fori_loop(rod: Rod, xs: Any) -> None:
    del xs

    def step(i: Any, carry: Any) -> Any:
        rod.step(0.1, 2)
        return carry + i

    transform.fori_loop(0, LENGTH, step, 0)


def while_loop(rod: Rod, xs: Any) -> None:
    del xs

    def step(i: Any) -> Any:
        rod.step(0.1, 2)
        return i + 1

    transform.while_loop(lambda i: i < LENGTH, step, 0)


def mapped(rod: Rod, xs: Any) -> Any:
    def step(x: Any) -> Any:
        rod.step(0.1, 2)
        return x + 1

    return transform.map(step, xs)


def cond(rod: Rod, xs: Any) -> None:
    transform.cond(xs, lambda: rod.step(0.1, 2), lambda: rod.step(0.2, 2))


def switch(rod: Rod, xs: Any) -> None:
    del xs
    transform.switch(1, [lambda: rod.step(0.1, 2), lambda: rod.step(0.2, 2), lambda: None])


HAND: dict[str, Callable[[Any, Any], Any]] = {
    "scan": lambda u, xs: jax.lax.scan(lambda c, x: ((body(c[0]), c[1] + x), None), (u, 0.0), xs)[0][0],
    "for_loop": lambda u, xs: jax.lax.scan(lambda u, _: (body(u), None), u, None, length=LENGTH)[0],
    "checkpointed": lambda u, xs: jax.lax.scan(lambda u, _: (body(u), None), u, None, length=LENGTH)[0],
    "fori_loop": lambda u, xs: jax.lax.fori_loop(0, LENGTH, lambda i, c: (body(c[0]), c[1] + i), (u, 0))[0],
    "while_loop": lambda u, xs: jax.lax.while_loop(lambda c: c[1] < LENGTH, lambda c: (body(c[0]), c[1] + 1), (u, 0))[
        0
    ],
    "mapped": lambda u, xs: jax.lax.scan(lambda u, x: (body(u), x + 1), u, xs)[0],
    "cond": lambda u, xs: jax.lax.cond(xs, body, lambda u: stepped(u, 0.2, 2, 0.1), u),
    "switch": lambda u, xs: jax.lax.switch(1, [body, lambda u: stepped(u, 0.2, 2, 0.1), lambda u: u], u),
}
OURS = (scan, for_loop, checkpointed, fori_loop, while_loop, mapped, cond, switch)


def ways(ours: Callable[[Rod, Any], Any]) -> dict[str, Run]:
    """The eager call, the hand-threaded one in eager mode and under `jax.jit`; all wait for the result."""
    rod, xs = Rod(), jnp.bool_(True) if ours is cond else jnp.ones(LENGTH)
    held, hand = {"u": rod.u.value}, HAND[ours.__name__]
    compiled = jax.jit(hand)

    def run() -> None:
        ours(rod, xs)
        rod.u.value.block_until_ready()

    def by_hand(program: Callable[[Any, Any], Any]) -> None:
        held["u"] = program(held["u"], xs)
        held["u"].block_until_ready()

    return {"ours": run, "eager": lambda: by_hand(hand), "jit": lambda: by_hand(compiled)}


def eager() -> None:
    """The table. Functions are made anew in each call, as in a method; JAX then compiles an eager loop again."""
    rows: dict[str, dict[str, str]] = {}
    for ours in OURS:
        runs = ways(ours)
        for run in (*runs.values(), *runs.values()):
            run()
        with compilations() as count:
            runs["ours"]()
        for _ in range(500):  # until what is matched often is written down
            runs["ours"]()
        found = ratios({name: runs[name] for name in ("ours", "jit")}, "jit", seconds=0.001, rounds=101)
        raw = ratios({name: runs[name] for name in ("eager", "ours")}, "ours", seconds=0.001, rounds=5)
        name = {"checkpointed": "for_loop, checkpoint=20", "mapped": "map"}.get(ours.__name__, ours.__name__)
        rows[name] = {
            "compilations of the second call": str(count[0]),
            "over jax.jit": f"{found['ours']:.2f}",
            "the eager loop of JAX over ours": f"{raw['eager']:.0f}",
        }
    show(f"Eager loops of {LENGTH} steps and branches: a second call beside hand-threaded JAX", rows)


if __name__ == "__main__":
    eager()
