"""Guarantees 1, 2 and 6 on random programs under random stacks of transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as hs

from statetransform import State, transform

from .programs import PROGRAMS, Block, Pure, Stateful, initial

STACKS = hs.lists(hs.sampled_from(["checkpoint", "jit", "named_call"]), max_size=3)
WRAPS = {"checkpoint": jax.checkpoint, "jit": jax.jit, "named_call": jax.named_call}


@pytest.fixture(autouse=True)
def programs_of_a_test_are_forgotten() -> Iterator[None]:
    """A module's worth of them would take a gigabyte."""
    yield
    jax.clear_caches()


def close(found: Any, expected: Any) -> None:
    """The same trees, up to the rounding of programs that XLA has fused in other ways."""
    plain = lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(plain(a), plain(b), rtol=2e-4, atol=2e-5), found, expected)


def ours(program: Block, stack: list[str], run: Stateful) -> Callable[[Any], Any]:
    """The stateful program under a stack of transforms."""
    f = run.function(program)
    for name in stack:
        f = getattr(transform, name)(f)
    return f


def by_hand(program: Block, stack: list[str]) -> Callable[[Any, Any], Any]:
    """The twin, `(values, x) -> (values, x)`, under the stack of JAX's transforms."""
    f = Pure().function(program)
    for name in stack:
        f = WRAPS[name](f)
    return lambda values, x: f((values, x))


def drawn(request: pytest.FixtureRequest, check: Callable[[Block, list[str]], None]) -> None:
    """Checks a tenth of the cases that are asked for: compiling both programs of one takes seconds."""
    cases = max(request.config.getoption("--cases") // 10, 1)

    @hypothesis.settings(max_examples=cases, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(program=PROGRAMS, stack=STACKS)
    def test(program: Block, stack: list[str]) -> None:
        hypothesis.note(f"{' of '.join(stack[::-1]) or 'no transform'} of {program}")
        check(program, stack)

    test()


def test_outputs_and_final_values_in_three_calls(request: pytest.FixtureRequest) -> None:
    """Property: outputs and states are those of the twin, in the first call, in a second one, and after a state was
    changed from outside."""

    def check(program: Block, stack: list[str]) -> None:
        run, values = Stateful(initial()), initial()
        f, twin = ours(program, stack, run), by_hand(program, stack)
        for x in (0.3, -0.4, 0.8):
            found = f(jnp.float32(x))
            values, expected = twin(values, jnp.float32(x))
            close((found, run.values()), (expected, values))
            if x < 0:
                run.states["u"].value = values["u"] = jnp.array([0.5, 0.5, -1.0])

    drawn(request, check)


def test_gradients_for_arguments_and_states(request: pytest.FixtureRequest) -> None:
    """Property: value, gradients for the argument and for two states, and final values are those of the twin, in eager
    mode and in two calls of the compiled gradient."""

    def check(program: Block, stack: list[str]) -> None:
        twin, x = by_hand(program, stack), jnp.float32(0.3)

        def loss(chosen: Any, values: Any, x: Any) -> Any:
            new, out = twin({**values, **chosen}, x)
            return out, new

        pure = jax.value_and_grad(loss, (0, 2), has_aux=True)
        for is_compiled in (False, True):
            run, values = Stateful(initial(1)), initial(1)
            states = {name: run.states[name] for name in ("u", "p")}
            step = transform.value_and_grad(ours(program, stack, run), argnums=0, states=states)
            step, pure = (transform.jit(step), jax.jit(pure)) if is_compiled else (step, pure)
            for _ in range(1 + is_compiled):
                found, found_grads = step(x)
                (out, values), grads = pure({name: values[name] for name in states}, values, x)
                close((found, found_grads, run.values()), (out, grads, values))

    drawn(request, check)


@pytest.mark.filterwarnings("ignore:.*uses no state of this kind")  # a program may use none
def test_ensembles(request: pytest.FixtureRequest) -> None:
    """Property: under vmap with every state mapped, each lane is the twin of its own values."""

    def check(program: Block, stack: list[str]) -> None:
        lanes = [initial(key) for key in range(2)]
        values = jax.tree.map(lambda *leaves: jnp.stack(leaves), *lanes)
        run, x = Stateful(values), jnp.array([0.3, -0.4])
        found = transform.vmap(ours(program, stack, run), state_axes={State: 0})(x)
        new, expected = jax.vmap(by_hand(program, stack))(values, x)
        close((found, run.values()), (expected, new))

    drawn(request, check)
