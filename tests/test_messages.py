"""What refusals say: which state or argument, where it was created, what happened, and what to write instead.

Those of carries, of concretization and of policies are next to what they refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import (
    Param,
    State,
    StateAxisError,
    StateStructureError,
    StateTraceError,
    transform,
)

HERE = r"\(created at test_messages\.py:\d+\)"


@pytest.fixture
def u() -> State:
    return State(jnp.zeros(3), name="u")


def write(state: State, value: Any) -> Any:
    state.value = value
    return value


def refuse(error: type, call: Callable[[], Any], *clauses: str) -> None:
    """The call raises that error, whose text has all the clauses in this order."""
    with pytest.raises(error) as info:
        call()
    assert re.search(".*".join(clauses), str(info.value), re.DOTALL), str(info.value)


def with_writing_rule(u: State) -> Any:
    f = transform.custom_vjp(lambda x: u.value.sum() * x)
    f.defvjp(lambda x: (write(u, u.value + 1).sum() * x, None), lambda _, ct: (ct,))
    return f


mode = State("fast", static=True, name="mode")
#: Of a state `u`: a call that is refused, and clauses of what is said.
REFUSED: dict[str, tuple[Callable[[State], Any], type[Exception], tuple[str, ...]]] = {
    "a state without a name": (lambda u: jax.grad(lambda x: write(st.Param(1.0), x))(1.0), StateTraceError,
        (f"Param {HERE} is written inside",)),
    "a state made of a tracer of raw JAX": (
        lambda u: jax.jit(lambda x: (State(x, name="born"), x)[1])(1.0), StateTraceError,
        (f"State 'born' {HERE} is created from a traced value", "create the state outside")),
    "a condition that writes": (
        lambda u: transform.while_loop(lambda c: write(u, u.value + 1).sum() < c, lambda c: c, 1.0), StateTraceError,
        (f"while_loop: the condition writes State 'u' {HERE}", "write the state in the body")),
    "a static state in a loop": (
        lambda u: transform.for_loop(lambda x: write(mode, "slow") and x, jnp.arange(3)), StateStructureError,
        (f"for_loop: State 'mode' {HERE} is static but is written inside", "Write it before or after the for_loop")),
    "branches that differ": (
        lambda u: transform.cond(True, lambda: write(u, jnp.zeros(4)).sum(), lambda: 0.0), StateStructureError,
        (f"cond: the branches leave State 'u' {HERE} with different types",
         r"true_fun: float32\[4\]   \(written at test_messages", r"false_fun: float32\[3\]   \(not written\)",
         "in every branch")),
    "values that do not fit": (lambda u: st.update({"u": u}, {"u": jnp.zeros(5)}), StateStructureError,
        (f"update: the value for .*u.* does not fit State 'u' {HERE}", r"held  : float32\[3\]",
         r"given : float32\[5\]", "Nothing was written")),
    "a batched write to a shared state": (
        lambda u: transform.vmap(lambda x: write(u, x * u.value))(jnp.arange(2.0)), StateAxisError,
        (f"vmap: State 'u' {HERE} is shared by all batch elements", "test_messages.py:", "differs",
         r"`state_axes=\{u: 0\}`")),
    "a rule that writes other states": (
        lambda u: transform.grad(transform.jit(with_writing_rule(u)))(1.0), StateStructureError,
        ("the function writes no state, but its rule writes", f"State 'u' {HERE}")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named_with_what_to_write(name: str, u: State) -> None:
    call, error, clauses = REFUSED[name]
    refuse(error, lambda: call(u), *clauses)


def test_a_state_whose_creation_failed() -> None:
    kept = []

    def f(x: Any) -> Any:
        kept.append(State(x, name="half"))
        raise KeyError

    with pytest.raises(KeyError):
        transform.jit(f)(1.0)
    refuse(StateTraceError, lambda: kept[0].value, f"State 'half' {HERE} has no value", "raised an error",
           "Create it again")  # fmt: skip


def test_a_tracer_that_has_ended(u: State) -> None:
    leaked = {}
    refuse(StateTraceError, lambda: transform.jit(lambda x: leaked.update({0: x}) or x)(1.0), "`leaked` still holds",
           r"It is at `leaked\[0\]`")  # fmt: skip
    given = f"State 'u' {HERE} was assigned a tracer of a trace that has ended"
    refuse(StateTraceError, lambda: write(u, leaked[0]), given, "Return the value from the transformed function")
    for make in (State, Param, lambda x: State({"a": [x]})):
        refuse(StateTraceError, lambda make=make: make(leaked[0]), "a tracer of a trace that has ended")


STEPS: dict[str, Callable[[Any], Any]] = {
    "for_loop: `length`": lambda n: transform.for_loop(lambda: 1.0, length=n).sum(),
    "for_loop: `length` ": lambda n: transform.for_loop(lambda: 1.0, length=n, checkpoint=2).sum(),
    "scan: `length`": lambda n: transform.scan(lambda c, _: (c + 1.0, None), 0.0, length=n)[0],
    "while_loop: `max_steps`": lambda n: transform.while_loop(lambda c: c >= 0, lambda c: c + 1.0, 0.0, max_steps=n),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_number_of_steps_is_concrete_and_may_be_an_array(name: str) -> None:
    with pytest.raises(jax.errors.ConcretizationTypeError, match=re.escape(name.strip())) as info:
        transform.jit(STEPS[name])(3)
    cure = (
        "Test a computed limit in the condition"
        if name.startswith("while_loop")
        else "transform.fori_loop(0, length, body"
    )
    for clause in ("when the loop is traced", "static_argnums", "static=True", cure, "argument n"):
        assert clause in str(info.value) + "".join(info.value.__notes__)
    assert STEPS[name](jnp.int32(3)) == STEPS[name](np.int64(3)) == STEPS[name](3) == 3.0


def test_a_pullback_to_states_of_a_loop_without_reverse_mode_says_what_to_write() -> None:
    w = State(1.0, name="w")
    loop = lambda: transform.while_loop(lambda c: c < 10.0, lambda c: c * 2, w.value)
    _, pullback = transform.vjp(loop, states=w)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work") as info:
        pullback(1.0)
    assert "`transform.while_loop(..., checkpoint=20)`" in "".join(info.value.__notes__)
