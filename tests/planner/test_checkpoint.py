"""A budget in the place of a policy: values and derivatives are those of the plain function, in every context."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import RandomState, State, policies, transform

from .compilers import KEEPS_BARRIERS

BUDGET = st.MemoryBudget("20KiB")  # five values of the six that the plain function holds
# What the compiler makes of the plan has tests of its own below.
pytestmark = pytest.mark.filterwarnings("ignore::statetransform.policies.PolicyWarning")


def weights(n: int = 5) -> list[Any]:
    return [jnp.asarray(np.random.default_rng(i).normal(size=(16, 16)), jnp.float32) * 0.3 for i in range(n)]


X = jnp.asarray(np.random.default_rng(99).normal(size=(64, 16)), jnp.float32)
WS = weights()


def loss(x: Any, ws: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return (x**2).sum()


def fitting(f: Callable[..., Any], budget: Any = BUDGET, **options: Any) -> Callable[..., Any]:
    return transform.checkpoint(f, policy=budget, **options)


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    ours, theirs = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if jnp.issubdtype(a.dtype, jnp.inexact):
            scale = float(jnp.abs(b).max()) + 1e-6
            assert float(jnp.abs(a - b).max()) <= tolerance * scale
        else:
            assert (np.asarray(a) == np.asarray(b)).all()


def grad(f: Any) -> Any:
    return jax.grad(f, argnums=1)


CONTEXTS: dict[str, Callable[[Any], Any]] = {
    "value": lambda f: f(X, WS),
    "grad": lambda f: grad(f)(X, WS),
    "jit of grad": lambda f: jax.jit(grad(f))(X, WS),
    "grad of jit": lambda f: grad(jax.jit(f))(X, WS),
    "vmap of grad": lambda f: jax.vmap(grad(f), in_axes=(0, None))(jnp.stack([X, 2 * X]), WS),
    "grad of vmap": lambda f: jax.grad(lambda ws: jax.vmap(f, in_axes=(0, None))(jnp.stack([X, 2 * X]), ws).sum())(WS),
    "forward mode": lambda f: jax.jvp(f, (X, WS), (X, WS)),
    "linearize": lambda f: jax.linearize(f, X, WS)[1](X, WS),
    "forward over reverse": lambda f: jax.jvp(lambda ws: grad(f)(X, ws), (WS,), (WS,)),
    "reverse over reverse": lambda f: jax.grad(lambda ws: sum((g**2).sum() for g in grad(f)(X, ws)))(WS),
    "reverse over forward": lambda f: jax.grad(lambda x: jax.jvp(f, (x, WS), (X, WS))[1])(X),
    "scan body": lambda f: jax.grad(
        lambda ws: jax.lax.scan(lambda c, x: (c + f(x, ws), None), 0.0, jnp.stack([X, 2 * X]))[0]
    )(WS),
    "checkpoint outside": lambda f: grad(jax.checkpoint(f))(X, WS),
    "half of the arguments": lambda f: jax.grad(f)(X, WS),
}


@pytest.mark.optimized
def test_the_budget_asks_for_a_plan() -> None:
    assert temporary_bytes(grad(loss)) > BUDGET.bytes
    kept_order = "optimization_barrier" if KEEPS_BARRIERS else "stablehlo.while"
    assert kept_order in jax.jit(grad(fitting(loss))).lower(X, WS).as_text()


@pytest.mark.parametrize("context", CONTEXTS)
def test_values_and_derivatives_are_those_of_the_plain_function(context: str) -> None:
    run = CONTEXTS[context]
    lanes = 2 if "vmap" in context else 1
    assert_close(run(fitting(loss, st.MemoryBudget(lanes * BUDGET.bytes))), run(loss), 1e-4)


def with_aux(x: Any, ws: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return (x**2).sum(), {"y": x, "n": jnp.int32(3), "mean": x.mean()}


@pytest.mark.parametrize("which", ["y", "mean"])
def test_a_cotangent_may_come_to_any_output(which: str) -> None:
    pull = lambda f: jax.vjp(lambda ws: f(X, ws)[1][which], WS)
    (out, ours), (_, theirs) = pull(fitting(with_aux)), pull(with_aux)
    assert_close(ours(out), theirs(out))


@pytest.mark.parametrize("which", ["both", "the second"])
def test_the_parts_of_a_loss_have_one_plan_whichever_are_differentiated(which: str) -> None:
    def parts(x: Any, ws: Any) -> Any:
        for w in ws:
            x = jnp.tanh(x @ w)
        return (x**2).sum(), {"mean": x.mean(), "n": jnp.int32(3)}

    def total(f: Any, ws: Any) -> Any:
        first, others = f(X, ws)
        return others["mean"] + (first if which == "both" else 0.0)

    f = fitting(parts, budget := policies.fit(f"{20 + len(which)}KiB"))
    assert_close(jax.grad(lambda ws: total(f, ws))(WS), jax.grad(lambda ws: total(parts, ws))(WS))
    assert len(budget.choices) == 1


def test_a_step_is_planned_for_the_state_that_the_next_one_reads() -> None:
    def run(policy: Any, ws: Any) -> Any:
        h = State(X, name="h")

        def cell(ws: Any) -> Any:
            for w in ws:
                h.value = jnp.tanh(h.value @ w)
            return h.value * 2

        step = cell if policy is None else fitting(cell, policy)
        return sum((step(ws) ** 2).sum() for _ in range(3))

    budget = policies.fit("17KiB")
    gradient = lambda policy: transform.grad(lambda ws: run(policy, ws))(WS)
    assert_close(gradient(budget), gradient(None))
    assert len(budget.choices) == 2  # of the first step, where the state is a constant, and of the others


@pytest.mark.filterwarnings("default::statetransform.policies.PolicyWarning")
def test_a_forward_pass_that_runs_twice_is_told() -> None:
    with pytest.warns(policies.PolicyWarning, match="with_aux was planned for the gradient of the scalar"):
        jax.eval_shape(lambda ws: jax.vjp(lambda ws: fitting(with_aux)(X, ws)[1]["y"], ws)[1](X), WS)


def test_a_random_state_draws_the_same_numbers_again() -> None:
    def make() -> tuple[Any, RandomState, State]:
        rng, n = RandomState(0), State(0)

        def noisy(x: Any, ws: Any) -> Any:
            for w in ws:
                x = jnp.tanh(x @ w) * jax.random.bernoulli(rng.split(), 0.5, x.shape)
                n.value = n.value + 1
            return (x**2).sum()

        return noisy, rng, n

    (ours, rng, n), (theirs, their_rng, their_n) = make(), make()
    expected = transform.jit(transform.grad(theirs, argnums=1))
    for outer in (lambda f: f, transform.jit):
        f = fitting(ours, budget := policies.fit("27KiB"))
        assert_close(outer(transform.grad(f, argnums=1))(X, WS[:3]), expected(X, WS[:3]))
        assert int(n.value) == int(their_n.value)
        assert (jax.random.key_data(rng.key) == jax.random.key_data(their_rng.key)).all()
    assert budget.choices[-1].flops_over_plain > 1.1


def test_states_are_read_written_once_and_differentiated() -> None:
    w, u, count = State(WS[0], name="w"), State(X, name="u"), State(0)

    def step() -> Any:
        h = u.value
        for _ in range(5):
            h = jnp.tanh(h @ w.value)
        u.value = h
        count.value = count.value + 1
        return (h**2).mean()

    ours, after = transform.grad(fitting(step), states=[w, u])(), u.value
    u.value = X
    theirs = transform.grad(step, states=[w, u])()
    assert_close((ours, after), (theirs, u.value))
    assert int(count.value) == 2
    assert not BUDGET.choices[-1].is_plain


def test_methods_static_arguments_and_classes() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = State(WS[0])

        def __call__(self, x: Any, n: int) -> Any:
            for _ in range(n):
                x = jnp.tanh(x @ self.w.value)
            return (x**2).sum()

        again = transform.checkpoint(__call__, policy=BUDGET, static_argnums=(1,))

    model = Model()
    theirs = transform.grad(lambda x: model(x, 5))(X)
    assert_close(transform.grad(lambda x: model.again(x, 5))(X), theirs)
    other = fitting(Model, static_argnums=(1,))()
    assert_close(transform.grad(lambda x: other(x, 5))(X), theirs)


def test_integers_and_keys_pass_through() -> None:
    def f(x: Any, index: Any, key: Any) -> Any:
        for _ in range(4):
            key, used = jax.random.split(key)
            x = jnp.tanh(x + 0.1 * jax.random.normal(used, x.shape))
        return (x[index] ** 2).sum(), key

    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        plain = jax.jit(jax.grad(f, has_aux=True)).lower(X, jnp.arange(3), key).compile()
        budget = policies.fit(int(0.9 * plain.memory_analysis().temp_size_in_bytes))
        ours = transform.jit(transform.grad(fitting(f, budget), has_aux=True))(X, jnp.arange(3), key)
        theirs = plain(X, jnp.arange(3), key)
        assert_close(ours[0], theirs[0])
        assert (jax.random.key_data(ours[1]) == jax.random.key_data(theirs[1])).all()
        assert not budget.choices[-1].is_plain


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return x


clipped.defvjp(lambda x: (x, None), lambda _, ct: (jnp.clip(ct, -0.01, 0.01),))


@jax.custom_jvp
def squared(x: Any) -> Any:
    return x * x


squared.defjvp(lambda primals, dots: (primals[0] ** 2, 3 * primals[0] * dots[0]))


def test_custom_rules_are_kept() -> None:
    def f(x: Any, ws: Any) -> Any:
        for w in ws:
            x = squared(clipped(jnp.tanh(x @ w)))
        return x.sum()

    assert_close(grad(fitting(f))(X, WS), grad(f)(X, WS))


def test_checkpoints_and_budgets_inside_are_part_of_the_plan() -> None:
    layer = lambda x, w: jnp.tanh(jnp.sin(x @ w))

    def f(layer: Any) -> Any:
        def run(x: Any, ws: Any) -> Any:
            for w in ws:
                x = layer(x, w)
            return x.sum()

        return run

    theirs = grad(f(layer))(X, WS)
    assert_close(grad(fitting(f(transform.checkpoint(layer))))(X, WS), theirs)
    assert_close(grad(fitting(f(fitting(layer))))(X, WS), theirs)
    assert_close(grad(transform.checkpoint(fitting(f(layer))))(X, WS), theirs)


def test_branches_inside() -> None:
    def f(x: Any, ws: Any) -> Any:
        for w in ws[:4]:
            x = jax.lax.cond(x.sum() > 0, lambda x: jnp.tanh(x @ w), lambda x: jnp.sin(x @ w), x)  # noqa: B023
        return x.sum()

    budget = st.MemoryBudget(int(0.89 * temporary_bytes(grad(f))))
    assert_close(grad(fitting(f, budget))(X, WS), grad(f)(X, WS))
    assert not budget.choices[-1].is_plain


def looped(x: Any, w: Any) -> Any:
    def step(h: Any, _: Any) -> Any:
        h = jnp.tanh(h @ w)
        return h, h.mean()

    h, ys = jax.lax.scan(step, x, None, length=40)
    return (h**2).sum() + ys.sum()


@pytest.mark.parametrize("budget", ["200KiB", "100KiB", "60KiB"])
def test_loops_inside_share_the_budget(budget: str) -> None:
    ours = jax.jit(grad(fitting(looped, policies.fit(budget))))
    assert_close(ours(X, WS[0]), grad(looped)(X, WS[0]), 1e-4)


def test_an_effect_happens_once(capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: Any, ws: Any) -> Any:
        for w in ws:
            x = jnp.tanh(x @ w)
        jax.debug.print("seen {}", x.shape[0])
        return (x**2).sum()

    jax.block_until_ready(grad(fitting(f))(X, WS))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("seen 64") == 1


def temporary_bytes(f: Any) -> int:
    return jax.jit(f).lower(X, WS).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.optimized
@pytest.mark.filterwarnings("default::statetransform.policies.PolicyWarning")
@pytest.mark.parametrize("share", [0.75, 0.5])
def test_the_compiled_step_honours_the_budget_or_a_warning_says_how_far_it_does_not(share: float) -> None:
    budget = int(share * temporary_bytes(grad(loss)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = fitting(loss, policies.fit(budget))
        found = max(temporary_bytes(grad(fit)), temporary_bytes(jax.value_and_grad(fit, argnums=1)))
    said = [str(w.message) for w in caught if issubclass(w.category, policies.PolicyWarning)]
    assert (found <= budget) != bool(said), (found, budget, said)
    assert all("meets" in message and str(found) in message for message in said)


@pytest.mark.optimized
def test_a_budget_that_the_plain_function_meets_gives_the_plain_program() -> None:
    f = fitting(loss, policies.fit("1 GiB"))
    assert jax.jit(grad(f)).lower(X, WS).compile().as_text().count("dot(") == (
        jax.jit(grad(loss)).lower(X, WS).compile().as_text().count("dot(")
    )
    assert "optimization_barrier" not in jax.jit(grad(f)).lower(X, WS).as_text()
    assert_close(jax.jit(grad(f))(X, WS), jax.jit(grad(loss))(X, WS), 0.0)


def test_a_budget_that_cannot_be_met_names_the_least_and_the_line() -> None:
    f = fitting(loss, policies.fit("5 KiB"))
    with pytest.raises(st.BudgetError, match=r"a budget of 5 KiB cannot be met.* test_checkpoint.py:\d+") as caught:
        grad(f)(X, WS)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, st.StateTransformError)
    assert caught.value.least is not None and caught.value.least > 5 * 1024
    assert_close(f(X, WS), loss(X, WS))  # nothing is differentiated
    assert_close(jax.jvp(f, (X, WS), (X, WS)), jax.jvp(loss, (X, WS), (X, WS)))


def towers(x: Any, ws: Any) -> Any:
    """Compilers need more than a plan says for this one."""
    return sum((loss(x, [w * k for w in ws]) for k in (1.0, 0.5)), jnp.zeros(()))


@pytest.mark.optimized
@pytest.mark.filterwarnings("error::statetransform.policies.PolicyWarning")
@pytest.mark.parametrize(("f", "ws"), [(towers, WS), (looped, WS[0])])
def test_the_least_that_is_named_is_kept_as_compiled(f: Any, ws: Any) -> None:
    step = lambda size: jax.jit(jax.value_and_grad(fitting(f, policies.fit(size)), (0, 1))).lower(X, ws)
    with pytest.raises(st.BudgetError) as caught:
        step("5 KiB")
    least = caught.value.least
    assert least is not None
    compiled = step(least).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= least
    assert_close(compiled(X, ws), jax.value_and_grad(f, (0, 1))(X, ws), 1e-4)


def test_a_function_that_computes_nothing_has_a_curve() -> None:
    (point,) = policies.plan(lambda x: x, jnp.ones(3))
    assert point.flops_over_plain == 1.0


@pytest.mark.parametrize("size", [float("inf"), float("nan")])
def test_a_budget_is_finite(size: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        policies.fit(size)
