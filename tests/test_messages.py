"""What refusals say: which state or argument, where it was created, what happened, and what to write instead.

Those of the guarantees, of concretization, of loops and of policies have theirs next to what they refuse.
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
from statetransform import State, StateAxisError, StateStructureError, StateTraceError, transform

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


def test_a_write_under_raw_jit(u: State) -> None:
    call = lambda: jax.jit(lambda x: write(u, x))(1.0)
    refuse(StateTraceError, call, f"State 'u' {HERE} is written inside a raw JAX transform", "Nothing was changed",
           r"`transform\.jit`", r"transform\.functionalize")  # fmt: skip
    assert u.value.shape == (3,)


def test_a_state_without_a_name_is_found_by_its_place() -> None:
    s = st.Param(1.0)
    refuse(StateTraceError, lambda: jax.grad(lambda x: write(s, x))(1.0), f"Param {HERE} is written inside")


def test_a_state_made_of_a_tracer_of_raw_jax() -> None:
    call = lambda: jax.jit(lambda x: (State(x, name="born"), x)[1])(1.0)
    refuse(StateTraceError, call, f"State 'born' {HERE} is created from a traced value", "create the state outside")


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
    leaked = []
    refuse(StateTraceError, lambda: transform.jit(lambda x: leaked.append(x) or x)(1.0), "`leaked` still holds",
           r"It is at `leaked\[0\]`")  # fmt: skip
    given = f"State 'u' {HERE} was assigned a tracer of a trace that has ended"
    refuse(StateTraceError, lambda: write(u, leaked[0]), given, "Return the value from the transformed function")


def test_a_write_to_a_state_that_is_left_out(u: State) -> None:
    f = transform.checkpoint(lambda x: write(u, x), states=st.Param)
    refuse(StateTraceError, lambda: f(1.0), f"State 'u' {HERE} is written", "`states=` argument does not include it",
           "Add the state")  # fmt: skip


@pytest.mark.parametrize("where", ["scan", "cond"])
def test_a_state_born_in_a_body(where: str) -> None:
    kept = []
    body = lambda c, _=None: (kept.append(State(c, name="born")) or c, None)
    call = {
        "scan": lambda: transform.scan(body, 1.0, None, 3),
        "cond": lambda: transform.cond(True, body, lambda c: (c, None), 1.0),
    }[where]
    refuse(StateTraceError, call, f"{where}: State 'born' {HERE} is created inside a function that may run any number",
           f"Create the state before the {where}")  # fmt: skip


def test_a_condition_that_writes(u: State) -> None:
    call = lambda: transform.while_loop(lambda c: write(u, u.value + 1).sum() < c, lambda c: c, 1.0)
    refuse(StateTraceError, call, f"while_loop: the condition writes State 'u' {HERE}", "write the state in the body")


@pytest.mark.parametrize(
    ("value", "after", "cure"),
    [
        (lambda u: u.value.astype(jnp.int32), r"int32\[3\]", r"`u\.value = x\.astype\(u\.value\.dtype\)`"),
        (lambda u: jnp.append(u.value, 1), r"float32\[4\]", "Keep the shape of `u`"),
        (lambda u: (u.value, 1), "float32", "Assign `u` its full structure before the loop"),
    ],
    ids=["dtype", "shape", "structure"],
)
def test_a_carry_that_changes_its_type(value: Any, after: str, cure: str, u: State) -> None:
    call = lambda: transform.fori_loop(0, 3, lambda i, c: (write(u, value(u)), c)[1], 0.0)
    refuse(StateStructureError, call, f"fori_loop: the body changes the type of State 'u' {HERE}",
           r"on entry : float32\[3\]", f"after    : .*{after}.*written at test_messages.py", cure)  # fmt: skip


def test_a_static_state_in_a_loop() -> None:
    mode = State("fast", static=True, name="mode")
    call = lambda: transform.for_loop(lambda x: write(mode, "slow") and x, jnp.arange(3))
    refuse(StateStructureError, call, f"for_loop: State 'mode' {HERE} is static but is written inside",
           "Write it before or after the for_loop")  # fmt: skip


def test_branches_that_differ(u: State) -> None:
    call = lambda: transform.cond(True, lambda: write(u, jnp.zeros(4)).sum(), lambda: 0.0)
    refuse(StateStructureError, call, f"cond: the branches leave State 'u' {HERE} with different types",
           r"true_fun: float32\[4\]   \(written at test_messages", r"false_fun: float32\[3\]   \(not written\)",
           "in every branch")  # fmt: skip


def test_values_that_do_not_fit(u: State) -> None:
    refuse(StateStructureError, lambda: st.update({"u": u}, {"u": jnp.zeros(5)}),
           f"update: the value for .*u.* does not fit State 'u' {HERE}", r"held  : float32\[3\]",
           r"given : float32\[5\]", "Nothing was written")  # fmt: skip


def test_a_batched_write_to_a_shared_state(u: State) -> None:
    call = lambda: transform.vmap(lambda x: write(u, x * u.value))(jnp.arange(2.0))
    refuse(StateAxisError, call, f"vmap: State 'u' {HERE} is shared by all batch elements",
           "test_messages.py:", "differs", r"`state_axes=\{u: 0\}`")  # fmt: skip


def test_a_rule_that_writes_other_states(u: State) -> None:
    f = transform.custom_vjp(lambda x: u.value.sum() * x)
    f.defvjp(lambda x: (write(u, u.value + 1).sum() * x, None), lambda _, ct: (ct,))
    refuse(StateStructureError, lambda: transform.grad(transform.jit(f))(1.0),
           "the function writes no state, but its rule writes", f"State 'u' {HERE}")  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error", "clauses"),
    [
        (lambda u: transform.grad(lambda x: x, states={"u": 1.0})(1.0), TypeError,
         ["`states=` must be a State or a pytree of States, but has a leaf of type float", r"st\.states\("]),
        (lambda u: transform.grad(lambda x: x, states=(u, u))(1.0), ValueError,
         ["a state is listed twice in `states=`"]),
        (lambda u: transform.grad(lambda x: x, argnums=2)(1.0), TypeError,
         ["argnums=2 needs at least 3 positional", "was called with 1"]),
        (lambda u: transform.grad(lambda s: s.value.sum())(u), TypeError,
         ["argument 0 is passed by reference", r"`states=st\.states\(model, st\.Param\)`"]),
        (lambda u: transform.scan(lambda c, x: c, 1.0, None, 3), TypeError,
         [r"scan: the body must return a pair \(carry, y\)"]),
        (lambda u: transform.scan(lambda c, x: (c, x), 1.0, 2.0), ValueError, ["leading axis"]),
        (lambda u: transform.checkpoint(lambda x, n: x, static_argnums=1)(1.0, [2]), TypeError, ["hashable"]),
        (lambda u: transform.checkpoint(lambda x: x, concrete=True), NotImplementedError,
         ["`static_argnums`", r"`jax\.ensure_compile_time_eval\(\)`"]),
        (lambda u: jax.jit(lambda: transform.checkpoint(lambda r: r[...])(jax.new_ref(1.0)))(), TypeError,
         [r"is a `jax\.Ref`", "repeat the writes", "`State`"]),
        (lambda u: transform.checkpoint(lambda x: x, policy="dots_savable"), TypeError,
         ["a policy is a function, not the text 'dots_savable'", "policies.dots_saveable"]),
        (lambda u: State(lambda: 1), TypeError, ["static"]),
    ],
    ids=["states_leaf", "twice", "argnums", "by_reference", "no_pair", "scalar_xs", "static", "concrete", "ref",
         "policy", "no_array"],
)  # fmt: skip
def test_arguments_that_cannot_work(call: Any, error: type, clauses: list[str], u: State) -> None:
    refuse(error, lambda: call(u), *clauses)
    assert u.value.shape == (3,)


def test_an_error_of_the_users_keeps_the_users_frame(u: State) -> None:
    def body(x: Any) -> Any:
        write(u, x)
        return x / undefined_name  # type: ignore[name-defined]  # noqa: F821

    for f in (
        transform.jit(body),
        transform.grad(body),
        transform.checkpoint(body),
        transform.vmap(lambda x: body(1.0)),
    ):
        with pytest.raises(NameError) as info:
            f(jnp.ones(1))
        names = [entry.name for entry in info.traceback]
        assert "body" in names
        assert u.value.shape == (3,)


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
