"""What a budget promises: more is never worse, the same is the same, and nobody does better by hand."""

from __future__ import annotations

import collections
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import BudgetError, policies, transform

# What is known is forgotten as in another process, and a compiler needs more than it does: no user can say so.
from statetransform._memory.plans import measured, plan_cache

from .compilers import KEEPS_BARRIERS

Figures = tuple[bool, bool, float]
DEPTH = 4


def noise(*shape: int, seed: int = 0) -> jax.Array:
    return 0.1 * jax.random.normal(jax.random.key(seed), shape)


def normed(x: Any, w: Any) -> Any:
    y = x @ w
    y = (y - y.mean(0)) * jax.lax.rsqrt(y.var(0) + 1e-5)
    return x + jax.nn.relu(y)


def paired(x: Any, w: Any) -> Any:
    d = x[:, None] - x[None]
    return x - 0.01 * (w[0, 0] * d / ((d**2).sum(-1, keepdims=True) + 0.1)).sum(1)


def gated(x: Any, w: Any) -> Any:
    return x + jnp.tanh(x @ w) * jax.nn.sigmoid(x @ w.T)


LAYERS = {
    normed: ([noise(32, 32, seed=i) for i in range(DEPTH)], noise(128, 32)),
    paired: ([1 + noise(1, 1, seed=i) for i in range(DEPTH)], noise(24, 3)),
    gated: ([noise(32, 32, seed=i) for i in range(DEPTH)], noise(128, 32)),
}


def loss_of(layer: Any, around: Callable[[Any], Any] = lambda f: f, size: int = 1) -> Any:
    def loss(ws: Any, x: Any) -> Any:
        for start in range(0, DEPTH, size):

            def block(x: Any, some: Any) -> Any:
                for w in some:
                    x = layer(x, w)
                return x

            x = around(block)(x, ws[start : start + size])
        return (x**2).mean()

    return loss


def compiled(loss: Any, args: Any) -> Any:
    return jax.jit(jax.value_and_grad(loss)).lower(*args).compile()


def size_of(program: Any) -> int:
    return program.memory_analysis().temp_size_in_bytes


def asked(loss: Any, args: Any, size: int) -> Figures:
    """Whether a budget is met, whether something is said of it, and its FLOPs."""
    budget = policies.fit(size)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = size_of(compiled(transform.checkpoint(loss, policy=budget), args))
        except BudgetError:
            return False, True, 0.0
    is_said = any(issubclass(w.category, policies.PolicyWarning) for w in caught)
    return found <= size, is_said, budget.choices[-1].flops_over_plain


@pytest.mark.parametrize("layer", LAYERS)
def test_a_larger_budget_is_never_worse(layer: Any) -> None:
    args = LAYERS[layer]
    alone = jax.jit(jax.grad(loss_of(layer))).lower(*args).compile()
    plain = max(size_of(alone), size_of(compiled(loss_of(layer), args)))  # as a gradient with its value and without
    before: Figures = (False, True, 0.0)
    for share in (0.3, 0.5, 0.55, 0.6, 0.8, 1.0) if layer is normed else (0.4, 0.55, 0.8, 1.0):
        now = asked(loss_of(layer), args, int(share * plain))
        if before[0]:
            assert now[0] and now[2] <= before[2] and (before[1] or not now[1]), (share, before, now)
        before = now
    assert before == (True, False, 1.0)


def test_a_budget_gives_the_same_whatever_was_asked_before() -> None:
    args = LAYERS[normed]
    plain = size_of(compiled(loss_of(normed), args))
    found = []
    for shares in ((0.6,), (0.4, 0.6), (0.8, 0.5, 0.6)):
        plan_cache._known.clear()
        found.append([asked(loss_of(normed), args, int(share * plain)) for share in shares][-1])
    assert found[0] == found[1] == found[2]


@pytest.mark.skipif(not KEEPS_BARRIERS, reason="the compiler removes what keeps a checkpoint apart")
@pytest.mark.parametrize("layer", LAYERS)
def test_no_checkpoint_that_is_written_by_hand_does_better(layer: Any) -> None:
    args, kept = LAYERS[layer], jax.checkpoint_policies.dots_saveable
    forms = [loss_of(layer, lambda f, p=p: jax.checkpoint(f, policy=p), n) for n in (1, 2) for p in (None, kept)]
    work = lambda program: program.cost_analysis()["flops"]
    for form in forms:
        by_hand = compiled(form, args)
        found = compiled(transform.checkpoint(loss_of(layer), policy=policies.fit(size_of(by_hand))), args)
        assert size_of(found) <= size_of(by_hand)
        assert work(found) <= 1.02 * work(by_hand)  # as this compiler counts them


@pytest.mark.parametrize("layer", LAYERS)
def test_a_refusal_names_a_budget_that_is_met(layer: Any) -> None:
    args = LAYERS[layer]
    with pytest.raises(BudgetError, match=r"cannot be met.* which `policies.fit\(\d+\)` meets") as caught:
        compiled(transform.checkpoint(loss_of(layer), policy=policies.fit("100 B")), args)
    assert caught.value.least is not None
    is_met, is_said, _ = asked(loss_of(layer), args, caught.value.least)
    assert is_met and not is_said


def test_a_refusal_names_the_plain_step_where_every_plan_takes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    real = measured.Measured.within

    def with_more(*args: Any) -> Any:
        found = real(*args)
        return dataclasses.replace(found, bytes=(found.bytes or 0) + 1_000_000)

    monkeypatch.setattr(measured.Measured, "within", with_more)
    args = LAYERS[gated]
    with pytest.raises(BudgetError) as caught:
        compiled(transform.checkpoint(loss_of(gated), policy=policies.fit("200 B")), args)
    alone = jax.jit(jax.grad(loss_of(gated))).lower(*args).compile()
    assert caught.value.least == max(size_of(alone), size_of(compiled(loss_of(gated), args)))


def test_a_warning_is_one_sentence_with_the_size_as_it_was_asked_for_and_a_budget_that_is_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = measured.compiled_step

    def with_more(*args: Any, **options: Any) -> measured.CompiledStep:
        """As of a compiler that needs more than is planned."""
        found = real(*args, **options)
        assert found.bytes is not None
        return dataclasses.replace(found, bytes=found.bytes + 20_000)

    monkeypatch.setattr(measured, "compiled_step", with_more)
    monkeypatch.setattr(plan_cache, "_known", collections.OrderedDict())
    args = LAYERS[normed]
    with pytest.raises(BudgetError, match=r"a budget of 50kB cannot be met.* kB\)"):
        compiled(transform.checkpoint(loss_of(normed), policy=policies.fit("50kB")), args)
    with pytest.warns(policies.PolicyWarning, match=r"no plan fits 90kB as compiled for ") as caught:
        compiled(transform.checkpoint(loss_of(normed), policy=policies.fit("90kB")), args)
    meets = int(str(caught[0].message).partition("policies.fit(")[2].partition(")")[0])
    assert asked(loss_of(normed), args, meets)[:2] == (True, False)
