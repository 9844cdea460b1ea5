"""Budgets of loops: sizes, choices, and what the chosen plans take."""

from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from benchmarks.loop_steps import start, temporary
from statetransform import transform

# What a budget chooses for loops of any size, without loops of that size.
from statetransform._memory.loops import choice as budgets
from statetransform._memory.loops import loops, measured

FOUR = budgets.Sizes(4, 4)


@pytest.mark.parametrize(
    ("size", "n"),
    [
        (1000, 1000), ("1000B", 1000), ("1kB", 1000), ("1 KB", 1000), ("1KiB", 1024), ("1.5 MiB", 3 << 19),
        ("2GiB", 2 << 30), (" 2 GB ", 2 * 10**9), (".5TiB", 1 << 39), ("1_000b", 1000), (np.int64(7), 7), (2.5e3, 2500),
    ],
)  # fmt: skip
def test_sizes(size: Any, n: int) -> None:
    assert st.MemoryBudget(size).bytes == n


@pytest.mark.parametrize(
    "size", ["", "2 XB", "GiB", "-1GB", "1GiB 2", "1,5 GB", "2", "0B", 0, -5, "0.1B", 2.5, None, True]
)
def test_what_is_no_size_is_refused(size: Any) -> None:
    said = r"is not a size|has no unit|must be positive|must not be negative|a number of bytes or a text such as"
    said += "|Write '2.5GiB' or '2.5GB', with a unit"
    with pytest.raises((ValueError, TypeError), match=said):
        st.MemoryBudget(size)


def evaluations(n: int, k: int, block: int) -> Any:
    return budgets.Choice(n, k, block, budgets.Sizes(0, 0), 0).evaluations


@pytest.mark.parametrize(("k", "block"), [(0, 2), (1, 3), (3, 2), (0, 29), (0, 30), (2, 13)])
def test_evaluations_of_blocks_are_as_counted(k: int, block: int) -> None:
    count = [0]

    def step(carry: Any, _: Any) -> Any:
        jax.debug.callback(lambda i: count.__setitem__(0, count[0] + 1), carry[0])
        return (carry[0] + 1, jnp.sin(carry[1])), None

    f = lambda x: loops.scan(step, (0, x), None, 30, checkpoint=k, block=block)[0][1]
    jax.block_until_ready(jax.jit(jax.grad(f))(1.0))
    jax.effects_barrier()
    assert count[0] == evaluations(30, k, block)


def gradient(n: int, size: int, checkpoint: Any) -> Any:
    w = jax.random.normal(jax.random.key(0), (size, size)) / size**0.5

    def loss(x: Any) -> Any:
        x, _ = transform.scan(lambda x, _: (jnp.sin(w @ x), None), x, None, n, checkpoint=checkpoint)
        return (x**2).sum()

    return jax.jit(jax.grad(loss)).lower(jnp.ones((size, size))).compile()


def test_more_memory_never_takes_more_evaluations_and_the_plan_joins_the_plain_scan() -> None:
    n, carry, residual = 200, 1000, 3000
    sizes = np.linspace(10 * carry, 1.02 * n * residual, 60).astype(int)
    found = [st.MemoryBudget(int(size)).choose("scan", n, budgets.Sizes(carry, residual)) for size in sizes]
    counts = [choice.evaluations for choice in found]
    assert counts == sorted(counts, reverse=True)
    assert found[-1].is_plain and counts[-1] == n
    just_below = st.MemoryBudget(n * residual + 2 * carry).choose("scan", n, budgets.Sizes(carry, residual))
    assert not just_below.is_plain and just_below.evaluations <= n + 5
    assert all(choice.bytes <= size for choice, size in zip(found, sizes, strict=True))


@pytest.mark.optimized
@pytest.mark.parametrize("carries", [6, 8, 15, 40, 120, 199])
def test_the_compiled_program_stays_within_the_budget(carries: int) -> None:
    size, n = 64, 200
    budget = st.MemoryBudget(carries * 4 * size**2)
    compiled = gradient(n, size, budget)
    assert compiled.memory_analysis().temp_size_in_bytes <= 1.02 * budget.bytes + 8192
    expected = gradient(n, size, None)(jnp.ones((size, size)))
    np.testing.assert_array_equal(compiled(jnp.ones((size, size))), expected)


def test_a_budget_that_nothing_can_meet_says_what_could() -> None:
    with pytest.raises(ValueError) as info:
        gradient(50, 32, st.MemoryBudget("10 KiB"))
    text = str(info.value)
    assert "scan: a budget of 10 KiB cannot be met. The least possible is " in text
    least = int(text.split("least possible is ")[1].split(" bytes")[0])
    gradient(50, 32, st.MemoryBudget(least))
    with pytest.raises(ValueError, match="cannot be met"):
        gradient(50, 32, st.MemoryBudget(least - 1))


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("name", "units"),
    [
        *[(name, 12) for name in ("logistic", "sine of a stencil", "leapfrog", "Burgers", "rod")],
        *[(name, 48) for name in ("leapfrog", "rod")],
    ],
)
def test_simulations_stay_within_the_budget_as_compiled(name: str, units: int) -> None:
    carry = sum(x.nbytes for x in jax.tree.leaves(start(name, 256)))
    assert temporary(name, 400, st.MemoryBudget(units * carry), size=256) <= 1.03 * units


@pytest.mark.optimized
def test_a_step_that_draws_normal_numbers_stays_within_the_budget_as_compiled() -> None:
    def loss(w: Any, budget: Any) -> Any:
        draw = lambda i: jax.random.normal(jax.random.fold_in(jax.random.key(0), i), (4096,))
        step = lambda x, i: (jnp.sin(x * w) + 0.1 * draw(i), None)
        return transform.scan(step, jnp.full(4096, 0.1), jnp.arange(60), checkpoint=budget)[0].sum()

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    with pytest.raises(st.BudgetError) as info:
        gradient.lower(0.7, st.MemoryBudget("1 kB"))
    for size in (info.value.least, 2 * info.value.least):  # type: ignore[operator]
        compiled: Any = gradient.lower(0.7, st.MemoryBudget(size)).compile()
        assert compiled.memory_analysis().temp_size_in_bytes <= 1.03 * size


@pytest.mark.optimized
def test_a_step_that_draws_random_numbers_stays_within_the_budget_as_compiled() -> None:
    def loss(x: Any, w: Any, budget: st.MemoryBudget) -> Any:
        def step(carry: Any, _: Any) -> Any:
            x, key = carry
            key, used = jax.random.split(key)
            return (jnp.sin(x) * w * jax.random.uniform(used, x.shape), key), None

        return transform.scan(step, (x, jax.random.key(0)), None, 40, checkpoint=budget)[0][0].sum()

    x = jnp.linspace(0.0, 1.0, 4096)
    gradient = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)
    with pytest.raises(st.BudgetError) as info:  # needs 9.2 carries
        gradient.lower(x, x, st.MemoryBudget(17 * x.nbytes // 2))
    budget = st.MemoryBudget(info.value.least)
    compiled = gradient.lower(x, x, budget).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 1.03 * budget.bytes


@pytest.mark.parametrize("argnums", [0, (0, 1)])
def test_a_step_whose_products_are_wider_than_the_carry_keeps_its_budget(argnums: Any) -> None:
    x, ws = jnp.full((256, 4), 0.1), (jnp.full((4, 64), 0.01), jnp.full((64, 4), 0.01))

    def loss(x: Any, ws: Any, budget: Any) -> Any:
        step = lambda x, _: (x + 0.1 * jnp.tanh(x @ ws[0]) @ ws[1], None)
        return transform.scan(step, x, None, 50, checkpoint=budget)[0].sum()

    gradient = lambda budget: jax.jit(jax.grad(lambda x, ws: loss(x, ws, budget), argnums)).lower(x, ws)
    with pytest.raises(st.BudgetError) as caught:
        gradient(st.MemoryBudget("1 kB"))
    least = caught.value.least
    assert least is not None
    for size in (least, least * 3 // 2):
        compiled: Any = gradient(st.MemoryBudget(size)).compile()
        assert compiled.memory_analysis().temp_size_in_bytes <= 1.03 * size


def test_the_least_is_the_sum_that_the_message_names() -> None:
    with pytest.raises(st.BudgetError) as info:
        st.MemoryBudget(20).choose("scan", 5, budgets.Sizes(12, 0))
    assert "The least possible is 36 bytes (36 B): the plain loop works on 3 carries of 12 B and" in str(info.value)
    with pytest.raises(st.BudgetError) as info:
        st.MemoryBudget(20).choose("scan", None, budgets.Sizes(12, 4, 24))
    assert "The least possible is 84 bytes (84 B): a sweep works on 5 carries of 12 B, and" in str(info.value)
    assert "the gradient of one step needs 24 B besides." in str(info.value)


def test_it_says_what_it_chose(caplog: pytest.LogCaptureFixture) -> None:
    budget = st.MemoryBudget("200 KiB")
    with caplog.at_level(logging.INFO, logger="statetransform"):
        gradient(100, 32, budget)
    choice = budget.choices[-1]
    assert str(choice) in caplog.text
    assert f"{choice.evaluations} step evaluations" in str(choice) and "within 200 KiB" in str(choice)
    assert choice.sizes.carry == choice.sizes.residual == 4096


def test_an_unknown_length_takes_carries_only() -> None:
    budget = st.MemoryBudget("2KiB")
    f = lambda x: transform.while_loop(lambda x: x.sum() > 1, lambda x: x * 0.9, x, checkpoint=budget).sum()
    np.testing.assert_allclose(jax.grad(f)(jnp.ones(10)), np.full(10, 0.9**22), rtol=1e-5)
    assert budget.choices[-1].carries == (2048 - 5 * 40) // 40
    with pytest.raises(ValueError, match="while_loop: a budget of 100 B cannot be met"):
        transform.while_loop(lambda x: x.sum() > 1, lambda x: x * 0.9, jnp.ones(10), checkpoint=st.MemoryBudget(100))


def test_residuals_that_do_not_change_and_inputs_are_not_counted() -> None:
    w, budget = jnp.eye(16), st.MemoryBudget("1 GiB")

    def loss(w: Any, xs: Any) -> Any:
        return transform.scan(lambda c, x: (w @ c * x, None), jnp.ones(16), xs, checkpoint=budget)[0].sum()

    jax.grad(loss, (0, 1))(w, jnp.ones((5, 16)))
    assert budget.choices[-1].sizes.residual == 2 * 64  # the carry, and its product with `w`


def test_a_budget_is_a_value() -> None:
    budget = st.MemoryBudget("1 KiB")
    assert budget == st.MemoryBudget(1024) and hash(budget) == hash(st.MemoryBudget(1024))
    assert budget != st.MemoryBudget(1000)
    assert repr(budget) == "MemoryBudget('1 KiB')" and str(budget) == "1 KiB"
    before = pickle.dumps(budget)
    budget.choose("scan", 100, FOUR)
    assert pickle.dumps(budget) == before and pickle.loads(before) == budget
    with pytest.raises(dataclasses.FrozenInstanceError):
        budget.size = 3  # type: ignore[misc]


def test_choices_are_those_of_equal_budgets_and_no_more_than_64_are_kept() -> None:
    budget, other = st.MemoryBudget(1023), st.MemoryBudget(1021)  # of no other test
    for n in range(1, 101):
        budget.choose("scan", n, FOUR)
    assert other.choices == ()
    assert [choice.n for choice in budget.choices] == list(range(37, 101))
    assert copy.copy(budget).choices == st.MemoryBudget(1023).choices == budget.choices


def test_a_budget_equal_to_one_that_was_used_says_what_was_chosen_as_well() -> None:
    loop = lambda x, within: transform.scan(lambda c, _: (jnp.sin(c), None), x, length=100, checkpoint=within)[0].sum()
    function = lambda x, within: transform.checkpoint(lambda x: jnp.sin(jnp.sin(x) * x).sum(), policy=within)(x)
    for f in (loop, function):
        first, second = st.MemoryBudget(40_000), st.MemoryBudget(40_000)
        for budget in (first, second):
            transform.grad(lambda x, f=f, budget=budget: f(x, budget))(jnp.ones(200))
        assert first.choices[-1] == second.choices[-1]


def test_a_choice_shows_in_a_list_what_it_prints():
    budget = st.MemoryBudget(1013)  # no other test's: equal budgets share their choices
    transform.grad(lambda x: transform.scan(lambda c, _: (jnp.sin(c), None), x, length=50, checkpoint=budget)[0])(1.0)
    (choice,) = budget.choices
    assert repr(choice) == f"<{choice}>" and str(choice) in repr(budget.choices) and "Sizes(" not in repr(choice)


def test_a_step_is_compiled_once_and_for_a_budget_only(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    compile_for = measured.compile_for
    monkeypatch.setattr(measured, "compile_for", lambda *args, **kw: compiled.append(args) or compile_for(*args, **kw))

    def gradient(n: int, checkpoint: Any) -> Any:
        step = lambda x, _: (jnp.sin(x * 0.7319), None)
        return jax.grad(lambda x: transform.scan(step, x, None, n, checkpoint=checkpoint)[0].sum())(jnp.ones(512))

    gradient(50, 5)
    gradient(50, "sqrt")
    assert len(compiled) == 0
    for n, budget in ((50, "40 KiB"), (50, "40 KiB"), (70, "60 KiB")):
        gradient(n, st.MemoryBudget(budget))
        assert len(compiled) == 1


@pytest.mark.optimized
@pytest.mark.parametrize("size", [9, 65, 257, 3001, 50_021])
def test_carries_of_a_few_bytes_take_4_KiB_more_at_most(size: int) -> None:
    def loss(a: Any, budget: Any) -> Any:  # a root by Newton's method
        step = lambda c: (c[0] - (c[0] ** 2 - a) / (2 * c[0]), c[1] + 1)
        goes_on = lambda c: (jnp.abs(c[0] ** 2 - a) > 1e-5) & (c[1] < 50)
        return transform.while_loop(goes_on, step, (a, 0), checkpoint=budget)[0]

    if size < 40:
        with pytest.raises(st.BudgetError) as info:
            jax.grad(loss)(2.0, st.MemoryBudget(size))
        assert info.value.least is not None
        size = info.value.least
    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    memory: Any = gradient.lower(2.0, st.MemoryBudget(size)).compile().memory_analysis()
    assert memory.temp_size_in_bytes <= 1.03 * size + 4096
    np.testing.assert_allclose(gradient(2.0, st.MemoryBudget(size)), 0.5 / 2**0.5, rtol=1e-4)
