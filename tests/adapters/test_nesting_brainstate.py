"""Transforms of brainstate inside ours and ours inside them, to depth three, against the hand-threaded function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import transform

from ..tables import ONCE

bs = pytest.importorskip("brainstate")

N = jnp.array([0.3, 0.5, 0.7])
X = jnp.array(1.5)


class Net:
    def __init__(self) -> None:
        self.w, self.h = bs.ParamState(N), bs.ShortTermState(jnp.zeros(()))

    def step(self, x: Any) -> Any:
        self.h.value = self.h.value + jnp.sum(jnp.sin(self.w.value * x))
        return self.h.value


def pure(w: Any, h: Any, x: Any) -> Any:
    return h + jnp.sum(jnp.sin(w * x))


#: What takes `f(x) -> a number` to another such function that runs it once.
THEIRS = {
    "jit": bs.transform.jit,
    "checkpoint": bs.transform.checkpoint,
    "for_loop": lambda f: lambda x: bs.transform.for_loop(f, jnp.stack([x]))[0],
    "scan": lambda f: lambda x: bs.transform.scan(lambda c, x: (c, f(x)), 0.0, jnp.stack([x]))[1][0],
    "cond": lambda f: lambda x: bs.transform.cond(x > 0, f, lambda x: x, x),
    "grad": lambda f: lambda x: bs.transform.grad(f, argnums=0, return_value=True)(x)[1],
}
OURS = {name: ONCE[name] for name in ("jit", "checkpoint", "scan", "checkpointed scan", "cond", "value_and_grad")}
LAYERS = {f"theirs: {name}": wrap for name, wrap in THEIRS.items()} | {
    f"ours: {name}": wrap for name, wrap in OURS.items()
}


def chains() -> list[tuple[str, str, str]]:
    """Theirs and ours in turn, so that each stands at each depth and beside each of the others."""
    theirs, ours = ([name for name in LAYERS if name.startswith(who)] for who in ("theirs", "ours"))
    found = []
    for i, outer in enumerate(theirs):
        for j, middle in enumerate(ours):
            inner = theirs[(i + j + 1) % len(theirs)]
            found.append((outer, middle, inner))
            found.append((middle, outer, ours[(i + j + 1) % len(ours)]))
    return found


@pytest.mark.parametrize("chain", chains()[::2], ids=" / ".join)
def test_three_deep(chain: tuple[str, str, str]) -> None:
    net = Net()
    step = net.step
    for name in reversed(chain):
        step = LAYERS[name](step)
    h = jnp.zeros(())
    for i in range(3):
        if i == 2:
            net.w.value = 2 * N
        h = pure(net.w.value, h, X)
        np.testing.assert_allclose(step(X), h, rtol=1e-5)
        np.testing.assert_allclose(net.h.value, h, rtol=1e-5)
    assert not isinstance(net.w.value, jax.core.Tracer)
    assert bs._state.TRACE_CONTEXT.state_stack == []


@pytest.mark.parametrize("chain", chains()[::5], ids=" / ".join)
def test_three_deep_a_call_that_raises_changes_nothing(chain: tuple[str, str, str]) -> None:
    net = Net()

    def fails(x: Any) -> Any:
        net.step(x)
        raise ZeroDivisionError

    broken, step = fails, net.step
    for name in reversed(chain):
        broken, step = LAYERS[name](broken), LAYERS[name](step)
    step(X)
    before = net.h.value
    with pytest.raises(ZeroDivisionError):
        broken(X)
    np.testing.assert_allclose(net.h.value, before)
    np.testing.assert_allclose(step(X), pure(N, before, X), rtol=1e-5)


@pytest.mark.parametrize("order", ["theirs in ours in theirs", "ours in theirs in ours", "theirs in ours"])
def test_gradients_with_respect_to_cells_through_several(order: str) -> None:
    net = Net()
    if order.startswith("ours"):
        middle = bs.transform.jit(transform.checkpoint(net.step))
        gradient = transform.grad(middle, states=net.w)
    elif order == "theirs in ours":
        gradient = transform.jit(lambda x: bs.transform.grad(lambda: net.step(x), net.w)())
    else:
        inner = transform.checkpoint(lambda x: bs.transform.for_loop(net.step, jnp.stack([x]))[0])
        found = bs.transform.grad(lambda x: inner(x), net.w)
        gradient = lambda x: found(x)
    for _ in range(2):
        h = net.h.value
        np.testing.assert_allclose(gradient(X), jax.grad(pure)(N, h, X), rtol=1e-5)
        np.testing.assert_allclose(net.h.value, pure(N, h, X), rtol=1e-5)


@pytest.mark.parametrize("name", ["jit", "checkpoint", "for_loop", "scan", "cond"])
def test_a_state_that_is_made_in_their_transform_within_ours(name: str) -> None:
    total = bs.State(jnp.zeros(()))

    def step(x: Any) -> Any:
        made = bs.State(2 * x)
        made.value = made.value + 1
        total.value = total.value + made.value
        return transform.checkpoint(lambda y: y * made.value)(x)

    f = transform.jit(THEIRS[name](step))
    for i in range(1, 4):
        np.testing.assert_allclose(f(X), X * (2 * X + 1))
        np.testing.assert_allclose(total.value, i * (2 * X + 1))
