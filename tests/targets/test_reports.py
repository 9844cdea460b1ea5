"""`target=` of budgets and reports: figures of the compiler of a card that is not there, and what they do not know."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import inspect, policies, transform

from .conftest import target_or_skip

pytestmark = pytest.mark.optimized
LAYERS, WIDTH, ROWS = 8, 512, 1 << 15


def loss(ws: list[jax.Array], x: jax.Array) -> jax.Array:
    for w in ws:
        x = jnp.tanh(x @ w)
    return (x**2).sum()


def arguments(sharding: Any = None, rows: int = ROWS) -> tuple[list[Any], Any]:
    of = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
    return [of(WIDTH, WIDTH) for _ in range(LAYERS)], of(rows, WIDTH)


def compiled_bytes(target: st.Target, f: Any = loss, rows: int = ROWS) -> int:
    """The temporary bytes of the gradient step, without this package."""
    step = jax.jit(jax.value_and_grad(f, argnums=(0, 1)))
    return step.lower(*arguments(target.sharding, rows)).compile().memory_analysis().temp_size_in_bytes


@pytest.fixture
def card(h100: st.Target) -> st.Target:
    """One is enough: reports ask each in the same way, and a TPU's compiler takes minutes."""
    return h100


def test_cost_is_what_the_compiler_of_the_target_says(card: st.Target) -> None:
    found = inspect.cost(loss, *arguments(), target=card)
    assert found.temporary_bytes == compiled_bytes(card) > LAYERS * ROWS * WIDTH * 4 / 2
    assert found.target == card.name and found.target in str(found)
    assert found.flops == pytest.approx(3 * LAYERS * 2 * ROWS * WIDTH**2, rel=0.1)
    assert (found.seconds is not None) == (card.platform == "tpu") == ("estimate: the compiler's" in str(found))
    assert ("autotuning" in str(found)) == (card.platform == "gpu")
    assert "how an allocator divides the memory" in str(found)


def test_arguments_say_the_target_by_themselves(card: st.Target) -> None:
    by_shardings = inspect.cost(loss, *arguments(card.sharding))
    assert by_shardings == inspect.cost(loss, *arguments(), target=card.name)
    assert by_shardings.target == card.name


def test_values_of_states_are_looked_at_for_the_target_too(card: st.Target) -> None:
    scale = st.State(jnp.float32(2.0), name="scale")
    found = inspect.cost(lambda ws, x: loss(ws, x) * scale.value, *arguments(), target=card)
    assert found.target == card.name
    assert isinstance(scale.value, jax.Array)


def test_without_the_compiler_nothing_is_said_of_it(card: st.Target) -> None:
    found = inspect.cost(loss, *arguments(), target=card, compile=False)
    assert found.temporary_bytes is None and found.notes == ()


def test_a_step_that_the_compiler_refuses_is_shown_with_its_figure(v5e: st.Target) -> None:
    found = inspect.cost(loss, *arguments(rows=1 << 21), target=v5e)
    assert found.temporary_bytes is not None and found.temporary_bytes > 16e9
    assert "The compiler refuses the program, which needs " in str(found)


def test_compare_plans_the_budgets_of_its_candidates_for_the_target(card: st.Target) -> None:
    plain = compiled_bytes(card)
    ways = {"plain": loss, "all again": policies.nothing_saveable, "half": policies.fit(plain // 2)}
    found = inspect.compare(ways, *arguments(), argnums=(0, 1), target=card)
    assert found["plain"].temporary_bytes == plain
    assert found["half"].temporary_bytes <= plain // 2
    assert found["half"].recompute_ratio < 1.5
    assert (found["plain"].seconds is not None) == (card.platform == "tpu") == ("estimated time" in str(found))
    assert card.name in str(found)


def test_a_program_for_a_target_is_not_timed(card: st.Target) -> None:
    with pytest.raises(ValueError, match="which is not there, cannot be timed"):
        inspect.compare({"plain": loss}, *arguments(), target=card, time=True)


def test_largest_is_the_size_that_fits_as_compiled_for_the_target(card: st.Target) -> None:
    n = inspect.largest(loss, lambda n: arguments(rows=1024 * n), "1GB", argnums=(0, 1), target=card)
    assert compiled_bytes(card, rows=1024 * n) <= 1e9 < compiled_bytes(card, rows=1024 * (n + 2))


def test_the_curve_of_plans_is_compiled_for_the_target(card: st.Target) -> None:
    curve = policies.plan(loss, *arguments(), argnums=(0, 1), compile=True, target=card)
    assert curve.plain_bytes == curve[0].compiled_bytes == compiled_bytes(card)
    assert curve[-1].compiled_bytes is not None and curve[-1].compiled_bytes < compiled_bytes(card) / 2
    assert card.name in str(curve)


@pytest.mark.parametrize("way", ["target=", "shardings", "raw jit"])
def test_a_plan_is_made_for_the_target(card: st.Target, way: str) -> None:
    budget = policies.fit(3 * compiled_bytes(card) // 4, target=card if way == "target=" else None)
    fitting = transform.checkpoint(loss, policy=budget)
    given = arguments(None if way == "target=" else card.sharding)
    if way == "raw jit":
        jax.jit(jax.grad(fitting, argnums=(0, 1))).lower(*given)
    else:
        transform.jit(transform.grad(fitting, argnums=(0, 1))).lower(*given)
    assert f"as compiled for {card.name}" in str(budget.choices[-1])
    assert compiled_bytes(card, fitting) <= budget.bytes


def test_a_plan_for_a_target_runs_here_with_the_values_of_the_plain_function(card: st.Target) -> None:
    key = jax.random.key(0)
    ws = [jax.random.normal(key, (16, 16)) / 4 for _ in range(4)]
    x = jax.random.normal(key, (1 << 12, 16))
    fitting = transform.checkpoint(loss, policy=policies.fit(1_000_000, target=card))
    found, wanted = transform.jit(transform.grad(fitting))(ws, x), jax.grad(loss)(ws, x)
    for one, other in zip(found, wanted, strict=True):
        assert jnp.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_budgets_of_different_targets_are_different(card: st.Target) -> None:
    assert policies.fit("1GB", target=card) == st.MemoryBudget("1GB", target=card.name)
    assert policies.fit("1GB", target=card) != policies.fit("1GB")
    assert f"target={card.name!r}" in repr(policies.fit("1GB", target=card))
    with pytest.raises(ValueError, match="no card is called 'H10'"):
        policies.fit("1GB", target="H10")


def test_a_budget_of_several_devices_is_for_one_of_them(card: st.Target) -> None:
    several = target_or_skip("H100", 4) if card.card else card
    rows = jax.NamedSharding(several.mesh((4,), ("data",)), jax.P("data"))
    ws, x = arguments()
    x = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=rows)
    plain = inspect.cost(loss, ws, x).temporary_bytes or 0
    assert plain < compiled_bytes(card) / 2
    fitting = transform.checkpoint(loss, policy=policies.fit(3 * plain // 4))
    step = transform.jit(transform.grad(fitting)).lower(ws, x).compile()
    assert step.memory_analysis().temp_size_in_bytes <= 3 * plain // 4


def test_what_is_known_of_a_step_is_kept_for_each_target(
    card: st.Target, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from statetransform._memory.plans import plan_cache

    monkeypatch.setattr(plan_cache, "folder_for_programs", lambda: tmp_path)
    small = arguments(rows=1 << 10)
    for target in (card, target_or_skip("A100"), card):
        fitting = transform.checkpoint(loss, policy=policies.fit(64 << 20, target=target))
        transform.jit(transform.grad(fitting)).lower(*small)
    assert len(list((tmp_path / "statetransform").iterdir())) == 2


def test_no_step_is_compiled_for_the_shardings_of_one_device(h100: st.Target, caplog: pytest.LogCaptureFixture) -> None:
    args = arguments(h100.sharding)
    half = (inspect.cost(loss, *args).temporary_bytes or 0) // 2
    with jax.log_compiles():
        inspect.cost(transform.checkpoint(loss, policy=policies.fit(half)), *args)
    said = [message.split(" in ")[0] for message in caplog.messages if message.startswith("Finished XLA compilation")]
    assert len(set(said)) == 1  # of the plain step and of plans, which have one name
