"""The forms that people write by hand are found, and compile to what `jax.checkpoint` compiles to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import BudgetError, policies, transform

# Which blocks were found, and what is compiled, shows in no public report. The message needs a plan that no compiler
# keeps to.
from statetransform._memory.plans import measured
from statetransform._memory.plans.checkpoints import by_source
from statetransform._memory.plans.choose import Decision, Planners, excess_message
from statetransform._memory.targets import target_of
from statetransform.inspect._view import differentiated, view_of

from .compilers import KEEPS_BARRIERS

DEPTH = 6


def conv(x: Any, w: Any) -> Any:
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def norm(x: Any) -> Any:
    centred = x - x.mean((0, 1, 2))
    return centred * jax.lax.rsqrt((centred**2).mean((0, 1, 2)) + 1e-5)


def block(x: Any, p: Any) -> Any:
    y = jax.nn.relu(norm(conv(x, p[0])))
    return jax.nn.relu(x + norm(conv(y, p[1])))


def line(x: Any, p: Any) -> Any:
    return x + jnp.tanh(x @ p[0]) @ p[1]


def loss_of(block: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def loss(ps: Any, x: Any) -> Any:
        for p in ps:
            x = block(x, p)
        return (x**2).mean()

    return loss


WEIGHTS = [tuple(0.1 * jax.random.normal(jax.random.key(k), (3, 3, 8, 8)) for k in (i, i + 9)) for i in range(DEPTH)]
IMAGES = jax.random.normal(jax.random.key(1), (8, 16, 16, 8))
MATRICES, ROWS = [(jnp.ones((16, 16)), jnp.ones((16, 16)))] * DEPTH, jnp.ones((64, 16))


def stage(ps: Any, x: Any) -> Any:
    for p in ps:
        x = line(x, p)
    return x


def in_stages(ps: Any, x: Any) -> Any:
    x = stage(ps[:2], x)
    x = stage(ps[2:4], jnp.sin(x))
    return (stage(ps[4:], jnp.sin(x)) ** 2).mean()


def in_the_loop(ps: Any, x: Any) -> Any:
    for p in ps:
        y = jax.nn.gelu(x @ p[0])
        y = y / (
            jnp.abs(y).mean()  # lines go back here, too
            + 1
        )
        x = x + y @ p[1]
    return (x**2).mean()


def in_one_line(ps: Any, x: Any) -> Any:
    for p in ps:
        x = jnp.tanh(jnp.tanh(x @ p[0]) @ p[1])
    return (x**2).mean()


def before_a_head(ps: Any, x: Any) -> Any:
    return ((stage(ps, x @ ps[0][0]) @ ps[0][1] - x) ** 2).mean()


LOSS = loss_of(block)


@pytest.mark.parametrize("loss", [LOSS, loss_of(line), in_stages, in_the_loop, in_one_line, before_a_head])
def test_layers_are_found_by_the_source(loss: Any) -> None:
    args = (WEIGHTS, IMAGES) if loss is LOSS else (MATRICES, ROWS)
    closed, pattern = differentiated(view_of(loss, args, {}, argnums=0))
    forms = by_source(Planners(closed).of(pattern).versions.first.closed)
    assert any(len(blocks) == DEPTH and len({end - start for start, end in blocks}) == 1 for blocks in forms)


def attention(x: Any, p: Any) -> Any:
    q, k, v = (y.reshape(*x.shape[:2], 4, -1) for y in jnp.split(x @ p[0], 3, -1))
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
    return x + jax.nn.gelu(x @ p[1]) @ p[2]


def looped(block: Any) -> Any:
    return lambda ps, x: (jax.lax.scan(lambda x, p: (block(x, p), None), x, ps)[0] ** 2).mean()


def row(x: Any, w: Any) -> Any:
    return jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w).sum()


def mapped(row: Any) -> Any:
    return lambda w, xs: jax.lax.map(lambda x: row(x, w), xs, batch_size=32).mean()


ATTENTION = [
    0.2 * jax.random.normal(jax.random.key(i), (8, *shape)) for i, shape in enumerate([(32, 96), (32, 128), (128, 32)])
]
SEQUENCES = 0.2 * jax.random.normal(jax.random.key(3), (8, 64, 32))
DOTS = jax.checkpoint_policies.dots_saveable


@pytest.mark.skipif(not KEEPS_BARRIERS, reason="the compiler removes what keeps a checkpoint apart")
@pytest.mark.filterwarnings("ignore::statetransform.policies.PolicyWarning")
@pytest.mark.parametrize(
    ("loss_of", "part", "args", "policy"),
    [
        (loss_of, block, (WEIGHTS, IMAGES), None),
        (loss_of, block, (WEIGHTS, IMAGES), DOTS),
        (looped, attention, (ATTENTION, SEQUENCES), DOTS),
        (mapped, row, (0.1 * jnp.sin(jnp.arange(4096.0)).reshape(64, 64), jnp.ones((192, 8, 64))), None),
    ],
    ids=["layers", "layers that keep products", "a loop that keeps products", "a map"],
)
def test_a_budget_is_never_worse_than_the_form_by_hand_that_fits_it(
    loss_of: Any, part: Any, args: Any, policy: Any
) -> None:
    def figures(loss: Any) -> tuple[int, float]:
        compiled = jax.jit(jax.value_and_grad(loss)).lower(*args).compile()
        return compiled.memory_analysis().temp_size_in_bytes, compiled.cost_analysis()["flops"]

    size, work = figures(loss_of(jax.checkpoint(part, policy=policy)))
    fitting = transform.checkpoint(loss_of(part), policy=policies.fit(size))
    found = figures(fitting)
    assert found[0] <= size and found[1] <= 1.01 * work
    ours, plain = jax.jit(jax.grad(fitting))(*args), jax.jit(jax.grad(loss_of(part)))(*args)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        assert jnp.allclose(a, b, atol=1e-5)


@pytest.mark.skipif(not KEEPS_BARRIERS, reason="the compiler removes what keeps a checkpoint apart")
def test_one_of_the_forms_that_keep_the_same_products_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loss = loss_of(lambda x, p: x + jax.nn.gelu(jax.nn.silu(x) @ p[0]) @ p[1])
    tried, once = list[str](), measured.Measured.once

    def noted(self: Any, some: Any) -> Any:
        if (checkpoints := some.plan.checkpoints) is not None and checkpoints.policy != "nothing":
            tried.append(checkpoints.policy)
        return once(self, some)

    monkeypatch.setattr(measured.Measured, "once", noted)
    jax.jit(jax.grad(transform.checkpoint(loss, policy=policies.fit(40_000)))).lower(MATRICES[:4], ROWS)
    assert tried == ["dots"]


def test_jitted_layers_may_hold_arrays_of_their_own() -> None:
    scale = np.linspace(0.5, 1.0, 16, dtype=np.float32)
    loss = loss_of(jax.jit(lambda x, p: line(x, p) * scale))
    gradient = lambda size: jax.grad(transform.checkpoint(loss, policy=policies.fit(size)))(MATRICES, ROWS)
    with pytest.raises(BudgetError, match="cannot be met") as caught:  # once all forms by hand were tried
        gradient(3 * ROWS.nbytes)
    ours, plain = gradient(caught.value.least), jax.grad(loss)(MATRICES, ROWS)
    assert all(jnp.allclose(a, b, atol=1e-6) for a, b in zip(*map(jax.tree.leaves, (ours, plain)), strict=True))


def test_a_warning_says_which_budget_can_be_kept_and_whether_a_newer_jax_needs_less() -> None:
    message = excess_message(15, Decision(None, 10, 20, 1.4), target_of())
    assert "no plan fits 15 B" in message and "takes 20 bytes, which `policies.fit(20)` meets" in message
    assert ("newer JAX" not in message) == KEEPS_BARRIERS


@pytest.mark.filterwarnings("ignore::statetransform.policies.PolicyWarning")
def test_complex_products_are_planned_though_a_policy_of_jax_cannot_keep_them() -> None:
    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = block(x, w)
        return (jnp.abs(x) ** 2).mean()

    def block(x: Any, w: Any) -> Any:
        y = x @ w
        return jnp.tanh(jnp.abs(y)) * y / (1 + jnp.abs(y)) + 0.1 * x

    noise = lambda k, *shape: jax.random.normal(jax.random.key(k), shape, jnp.complex64) / 5
    ws, x = [noise(k, 16, 16) for k in range(DEPTH)], noise(9, 128, 16)
    plain = jax.jit(jax.grad(loss)).lower(ws, x).compile().memory_analysis()
    assert plain is not None
    fitting = transform.checkpoint(loss, policy=policies.fit(plain.temp_size_in_bytes // 2))
    for ours, theirs in zip(jax.grad(fitting)(ws, x), jax.grad(loss)(ws, x), strict=True):
        assert jnp.allclose(ours, theirs, atol=1e-6)
