"""`jit(donate_states=True)`: buffers are reused, and a call that raises leaves live arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import RandomState, State, StateTraceError, transform

from .tables import ONCE


@pytest.fixture
def u() -> State:
    return State(jnp.arange(4.0), name="u")


def test_the_buffer_of_a_written_state_is_reused(u: State) -> None:
    w = State(jnp.ones(4), name="w")

    @transform.jit(donate_states=True)
    def step(x: Any) -> None:
        u.value = u.value + w.value * x

    old, kept = u.value, w.value
    step(1.0)
    assert old.is_deleted() and not kept.is_deleted()
    place = u.value.unsafe_buffer_pointer()
    step(1.0)
    assert u.value.unsafe_buffer_pointer() == place
    np.testing.assert_array_equal(u.value, np.arange(4.0) + 2)


def test_update_refuses_values_whose_buffers_were_donated(u: State) -> None:
    first, best = State(0.0, name="first"), st.values(u)

    @transform.jit(donate_states=True)
    def step() -> None:
        u.value = u.value + 1

    step()
    with pytest.raises(ValueError, match=r"(?s)State 'u' .* was deleted.* Nothing was written.*jnp\.copy"):
        st.update([first, u], [1.0, best])
    assert first.value == 0.0
    np.testing.assert_array_equal(u.value, np.arange(4.0) + 1)


def test_an_error_while_tracing_leaves_the_state_alive(u: State) -> None:
    @transform.jit(donate_states=True, static_argnums=0)
    def step(fails: bool) -> None:
        u.value = u.value + 1
        if fails:
            raise KeyError("while tracing")

    step(False)
    with pytest.raises(KeyError, match="while tracing"):
        step(True)
    np.testing.assert_array_equal(u.value, np.arange(4.0) + 1)
    step(False)
    np.testing.assert_array_equal(u.value, np.arange(4.0) + 2)


AROUND = {name: ONCE[name] for name in ("value_and_grad", "vjp", "jvp", "jit", "checkpoint", "jit of value_and_grad")}
AROUND["vmap"] = lambda f: lambda x: transform.vmap(f, split_rngs=False)(jnp.full(2, x))
AROUND["vmap of the state"] = lambda f: (
    lambda x: transform.vmap(f, state_axes={lambda state: state.name == "u": 0}, split_rngs=False)(jnp.full(4, x))
)
STAGED = ("jit", "checkpoint", "jit of value_and_grad", "vmap of the state")  # take nothing that was compiled ahead


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("around", AROUND)
def test_an_error_in_a_transform_around_leaves_the_state_alive(u: State, around: str, ahead: bool) -> None:
    rng = RandomState(0, name="rng")

    @transform.jit(donate_states=True)
    def step() -> None:
        u.value = u.value * jax.random.uniform(rng.split())

    call = step.lower().compile() if ahead and around not in STAGED else step

    def f(x: Any) -> Any:
        call()
        call()
        raise KeyError("behind the step")

    with pytest.raises(KeyError, match="behind the step"):
        AROUND[around](f)(1.0)
    np.testing.assert_array_equal(u.value, np.arange(4.0))
    assert (jax.random.key_data(rng.key) == jax.random.key_data(jax.random.key(0))).all()


def test_a_residual_is_not_given_away(u: State) -> None:
    @transform.jit(donate_states=True)
    def step() -> None:
        u.value = u.value + 1

    def f(x: Any) -> Any:
        y = (u.value * jnp.sin(x)).sum()  # the derivative needs the value from before the step
        step()
        return y * u.value.sum()

    np.testing.assert_allclose(transform.grad(f)(0.5), 6 * 10 * np.cos(0.5), rtol=1e-6)
    np.testing.assert_array_equal(u.value, np.arange(4.0) + 1)


@pytest.mark.parametrize("outer", [lambda f: f, transform.jit], ids=["eager", "jit"])
def test_a_state_that_is_differentiated_is_not_given_away(u: State, outer: Any) -> None:
    @transform.jit(donate_states=True)
    def step(x: Any) -> Any:
        u.value = u.value * x
        return (u.value**2).sum()

    before, x = u.value, 2.0
    expected = jax.grad(lambda u, x: ((u * x) ** 2).sum(), argnums=(0, 1))(before, x)
    for found in zip(expected, outer(lambda x: transform.grad(step, states=u, argnums=0)(x))(x), strict=True):
        np.testing.assert_allclose(*found)
    np.testing.assert_array_equal(u.value, before * x)


@pytest.mark.parametrize("is_written", [True, False])
def test_two_states_with_one_buffer_are_refused_before_anything_is_given_away(u: State, is_written: bool) -> None:
    v = State(u.value, name="v")

    @transform.jit(donate_states=True)
    def step() -> None:
        u.value = u.value + v.value
        if is_written:
            v.value = v.value * 2

    with pytest.raises(StateTraceError, match=r"State 'u' .*and State 'v' .*hold the same array"):
        step()
    np.testing.assert_array_equal(u.value, np.arange(4.0))
    np.testing.assert_array_equal(v.value, np.arange(4.0))
    v.value = v.value.copy()
    step()
    np.testing.assert_array_equal(u.value, 2 * np.arange(4.0))


@pytest.mark.parametrize("calls", [0, 3])
def test_an_argument_with_the_buffer_of_a_state_is_refused_before_anything_is_given_away(u: State, calls: int) -> None:
    @transform.jit(donate_states=True)
    def step(x: Any) -> None:
        u.value = u.value + x["x"]

    for _ in range(calls):
        step({"x": jnp.zeros(4)})
    with pytest.raises(StateTraceError, match=r"State 'u' .*and an argument of the call hold the same array"):
        step({"x": u.value})
    step({"x": u.value.copy()})
    np.testing.assert_array_equal(u.value, 2 * np.arange(4.0))


@pytest.mark.parametrize("calls", [0, 3], ids=["first call", "later call"])
@pytest.mark.parametrize("options", [{}, {"donate_states": True}], ids=["plain", "donating"])
def test_a_state_whose_array_another_program_got_is_named(options: Any, calls: int) -> None:
    online, target = State(jnp.ones(4), name="online"), State(jnp.zeros(4), name="target")

    @transform.jit(donate_states=True)
    def train() -> None:
        online.value = online.value + 1

    @transform.jit(**options)
    def move() -> None:
        target.value = 0.9 * target.value + 0.1

    for _ in range(calls):
        move()
    target.value = online.value
    train()
    with pytest.raises((RuntimeError, ValueError), match="deleted") as caught:
        move()
    (note,) = [note for note in caught.value.__notes__ if "State" in note]
    assert note.startswith("The array that State 'target' (created at test_donation.py:")
    assert "was given to another program before this call" in note and "jnp.copy(" in note


def test_an_error_at_run_time_says_what_is_lost(u: State) -> None:
    fails = [False]

    def host(x: Any) -> Any:
        if fails[0]:
            raise KeyError("at run time")
        return x

    @transform.jit(donate_states=True)
    def step() -> None:
        u.value = jax.pure_callback(host, jax.ShapeDtypeStruct((4,), jnp.float32), u.value) + 1

    step()
    fails[0] = True
    with pytest.raises(Exception, match="at run time") as info:
        step()
        jax.block_until_ready(u.value)
    if u.value.is_deleted():
        (note,) = [note for note in info.value.__notes__ if "buffers" in note]  # JAX may have added one of its own
        assert "The buffers of State 'u' (created at test_donation.py:" in note and "the values are lost" in note
    fails[0], u.value = False, jnp.zeros(4)
    step()
    np.testing.assert_array_equal(u.value, np.ones(4))


def test_a_guard_against_transfers_does_not_meet_what_we_do(u: State) -> None:
    @transform.jit(donate_states=True)
    def step(x: Any) -> None:
        u.value = u.value * x

    x, expected = jnp.full(u.value.shape, 2.0), np.array(u.value) * 2.0**4
    with jax.transfer_guard("disallow"):
        for _ in range(4):
            step(x)
    np.testing.assert_allclose(u.value, expected)


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_an_argument_of_a_method_is_donated_by_its_name() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = State(jnp.float32(2))

        @transform.jit(donate_argnames="y")
        def step(self, x: Any, y: Any) -> Any:
            return x + y * self.w.value

    model = Model()
    for args, kwargs in (((1.0, 2.0), {}), ((1.0,), {"y": 2.0}), ((), {"x": 1.0, "y": 2.0})):
        infos, named = model.step.lower(
            *map(jnp.float32, args), **{k: jnp.float32(v) for k, v in kwargs.items()}
        ).args_info
        assert [info.donated for info in (*infos, *named.values())] == [False, True]


@pytest.mark.parametrize("number", [1, -1])
def test_arguments_given_away_are_counted_from_the_end_of_the_signature_as_well(number: int) -> None:
    u = State(jnp.ones(4), name="u")

    @transform.jit(donate_argnums=number)
    def step(x: Any, y: Any) -> Any:
        u.value = u.value + x
        return y * 2

    x, y = jnp.ones(4), jnp.ones(4)
    step(x, y)
    assert (x.is_deleted(), y.is_deleted(), u.value.tolist()) == (False, True, [2.0] * 4)
