"""Loops that are run backwards: what an inverse must not do, and where there can be none."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import RandomState, State, transform


def _loop(step: Any, back: Any, **more: Any) -> Any:
    u, v = State(jnp.ones(3), name="u"), State(jnp.ones(3), name="v")
    rng = RandomState(0, name="rng")
    return transform.for_loop(lambda: step(u, v, rng), length=3, checkpoint=st.Reversible(lambda: back(u, v, rng)))


def _double(*states: State) -> None:
    for state in states:
        state.value = state.value * 2


def _halve(*states: State) -> None:
    for state in states:
        state.value = state.value / 2


def test_a_state_that_the_inverse_forgets_is_named() -> None:
    with pytest.raises(st.StateTransformError) as error:
        _loop(lambda u, v, rng: _double(u, v), lambda u, v, rng: _halve(u))
    assert "for_loop: the step writes State 'v' (created at" in str(error.value)
    assert "the inverse does not set it back" in str(error.value)


def test_a_random_state_that_the_step_advances_is_named() -> None:
    def draw(u: Any, v: Any, rng: Any) -> None:
        u.value = u.value + jax.random.normal(rng.split(), (3,))

    with pytest.raises(st.StateTransformError, match="fold_in") as error:
        _loop(draw, lambda u, v, rng: _halve(u))
    assert "'rng'" in str(error.value)


def test_a_state_that_only_the_inverse_writes_is_named() -> None:
    with pytest.raises(st.StateTransformError, match="the inverse writes State 'v'"):
        _loop(lambda u, v, rng: _double(u), lambda u, v, rng: _halve(u, v))


def test_a_state_of_another_type_is_named() -> None:
    with pytest.raises(st.StateStructureError, match="the inverse changes the type of State 'u'"):
        _loop(lambda u, v, rng: _double(u), lambda u, v, rng: setattr(u, "value", u.value[:2]))


@pytest.mark.parametrize(
    ("back", "text"),
    [
        (lambda c, x: (c, None), "the inverse changes the structure of the carry"),
        (lambda c, x: c[:2], "the inverse changes the type of the carry"),
        (lambda c, x: c.astype(jnp.float16), "the inverse changes the type of the carry"),
    ],
)
def test_a_carry_of_another_type_is_refused(back: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        transform.scan(lambda c, x: (c * 2, None), jnp.ones(3), None, 3, checkpoint=st.Reversible(back))


def _same(i: Any, c: Any) -> Any:
    return c


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (lambda back: transform.while_loop(lambda c: c < 3, lambda c: c + 1, 0.0, checkpoint=back), "known length"),
        (lambda back: transform.map(jnp.sin, jnp.ones(3), checkpoint=back), "nothing to undo"),
        (lambda back: st.policies.loops(back), "policies.loops"),
        (lambda back: transform.jit(lambda n: transform.fori_loop(0, n, _same, 1.0, checkpoint=back))(3), "bounds"),
        (lambda back: st.Reversible(3), "must be a function"),
        (lambda back: st.Reversible(back.inverse, 0), "1 or more"),
        (lambda back: st.Reversible(back.inverse, 2.5), "a number of steps"),
        (lambda back: transform.scan(lambda c, x: (c, x), 0.0, jnp.ones(3), checkpoint=st.Reversible), "an inverse"),
    ],
)  # fmt: skip
def test_what_cannot_be_undone_is_refused(run: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        run(st.Reversible(lambda *args: args[0]))
