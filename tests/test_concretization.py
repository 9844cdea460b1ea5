"""Python control flow on a traced value: the error says whose value it is, and what to do."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import State, transform

from .tables import ROWS, Row

ADVICE = ("static_argnums", "State(value, static=True)", "jax.ensure_compile_time_eval", "transform.cond")


def notes_of(call: Any, kind: type[Exception] = jax.errors.TracerBoolConversionError) -> str:
    with pytest.raises(kind) as info:
        call()
    notes = "\n".join(getattr(info.value, "__notes__", []))
    for cure in ADVICE:
        assert cure in notes
    return notes


mode, vector = State(jnp.float32(1), name="mode"), State(jnp.ones(3), name="vector")


class Model:
    def __init__(self) -> None:
        self.gate = State(jnp.float32(1), name="gate")

    def gated(self, x: Any) -> Any:
        return x if self.gate.value else -x


def of_both(x: Any, y: Any) -> Any:
    z = jnp.sin(x) @ vector.value
    for _ in range(3):
        z = jax.jit(lambda z: z * 2.0)(z)
    return y if z > 0 else -y


#: What decides: a call under a transform, what the first line names, and what it does not.
NAMED: dict[str, tuple[Callable[[Any], Any], list[str], list[str]]] = {
    "argument": (lambda t: t(lambda x, low: x if low > 0 else -x)(1.0, 2.0), ["argument `low`"], ["`x`"]),
    "keyword": (lambda t: t(lambda x, *, flag: x if flag else -x)(1.0, flag=True), ["argument `flag`"], []),
    "leaf": (lambda t: t(lambda a, x: x if a["deep"][1] else -x)({"deep": [1, True]}, 1.0), ["a['deep'][1]"], []),
    "state": (
        lambda t: t(lambda x: x if mode.value > 0 * vector.value.size else -x)(1.0),
        ["State 'mode' (created at test_concretization.py:"],
        ["vector", "argument"],
    ),
    "state of a method": (lambda t: t(Model().gated)(1.0), ["State 'gate'"], []),
    "both": (lambda t: t(of_both)(jnp.ones(3), 1.0), ["argument `x`", "State 'vector'"], ["`y`"]),
    "inner function": (lambda t: transform.jit(lambda x: t(lambda y: y if y > 0 else -y)(x * 2))(1.0), ["`y`"], []),
}


@pytest.mark.parametrize("wrap", [transform.checkpoint, transform.jit])
@pytest.mark.parametrize("name", NAMED)
def test_the_note_names_that_on_which_python_decides(name: str, wrap: Any) -> None:
    call, named, others = NAMED[name]
    first_line = notes_of(lambda: call(wrap)).partition("\n")[0]
    assert all(text in first_line for text in named)
    assert not any(text in first_line for text in others)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (lambda n: range(n), jax.errors.TracerIntegerConversionError),
        (lambda n: int(n), jax.errors.ConcretizationTypeError),
        (lambda n: float(n), jax.errors.ConcretizationTypeError),
        (lambda n: np.asarray(n), jax.errors.TracerArrayConversionError),
        (lambda n: [1, 2, 3][n], jax.errors.TracerIntegerConversionError),
        (lambda n: jnp.arange(n), jax.errors.ConcretizationTypeError),
        (lambda n: jnp.ones(3)[n > 0], jax.errors.NonConcreteBooleanIndexError),
    ],
    ids=["range", "int", "float", "numpy", "list index", "arange", "mask"],
)
def test_every_concretization_error_carries_the_note(body: Any, kind: type[Exception]) -> None:
    notes = notes_of(lambda: transform.checkpoint(lambda n: (body(n), n)[1])(3), kind)
    assert "argument `n`" in notes
    is_for_numpy = kind is jax.errors.TracerArrayConversionError
    assert ("write `jnp` in place of `np`" in notes) == is_for_numpy
    assert ("Python cannot branch" in notes) != is_for_numpy


def test_a_decision_inside_a_raw_loop_still_carries_the_advice() -> None:
    s = State(jnp.float32(1), name="s")

    @transform.checkpoint
    def f(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (c if s.value > 0 else -c, None), x, None, length=2)[0]

    notes_of(lambda: f(1.0))


@pytest.mark.parametrize("row", [row for row in ROWS if row.is_loop], ids=lambda row: row.name)
def test_bodies_of_loops_and_branches_carry_the_note(row: Row) -> None:
    s = State(jnp.float32(1), name="s")

    def body(x: Any) -> Any:
        s.value = s.value * 2.0
        return x if s.value > 0 else -x

    for around in (lambda f: f, transform.jit):
        notes = notes_of(lambda: around(row.ours(body))(1.0))  # noqa: B023
        assert "State 's'" in notes
        assert notes.count("static_argnums") == 1
    assert s.value == 1.0


def test_the_note_is_of_the_innermost_trace_that_knows_the_source() -> None:
    @transform.jit
    def f(threshold: Any) -> None:
        def body(i: Any) -> Any:
            return i if threshold > 0 else -i

        transform.for_loop(body, jnp.arange(3))

    notes = notes_of(lambda: f(1.0))
    assert "argument `threshold`" in notes
    assert notes.count("static_argnums") == 1


def in_a_loop(x: Any, n: Any) -> Any:
    u = State(x, name="u")

    def step() -> None:
        now = u.value * x
        if n:
            now = now + 1
        u.value = now

    transform.for_loop(step, length=3)
    return u.value


def in_a_branch(x: Any, n: Any) -> Any:
    return transform.cond(x > 0, lambda x: x * 2 if n > 0 else x, lambda x: x, x)


@pytest.mark.parametrize("around", [lambda f: f, transform.grad], ids=["jit", "jit(grad)"])
@pytest.mark.parametrize("f", [in_a_loop, in_a_branch])
def test_the_note_names_what_python_was_given_and_nothing_beside_it(f: Any, around: Any) -> None:
    assert "depends on the argument `n`.\n" in notes_of(lambda: transform.jit(around(f))(1.0, 1.0))


@pytest.mark.parametrize("wrap", [transform.checkpoint, transform.jit])
def test_an_error_of_the_user_is_passed_on_as_it_is(wrap: Any) -> None:
    error = ValueError("mine")

    def f(x: Any) -> Any:
        raise error

    with pytest.raises(ValueError, match="mine") as info:
        wrap(f)(1.0)
    assert info.value is error
    assert not any("static_argnums" in note for note in getattr(error, "__notes__", []))


def test_the_same_call_may_fail_again_with_the_same_single_note() -> None:
    f = transform.checkpoint(lambda x: x if x else -x)
    counts = []
    for _ in range(2):
        with pytest.raises(jax.errors.TracerBoolConversionError) as info:
            f(1.0)
        counts.append(len(info.value.__notes__))
    assert counts[0] == counts[1]
    assert sum("static_argnums" in note for note in info.value.__notes__) == 1


SAVING = {
    "pickle": lambda: pickle.dumps(vector),
    "pickle of values": lambda: pickle.dumps({"v": vector.value}),
    "savez": lambda: np.savez(io.BytesIO(), v=vector.value),
    "save": lambda: np.save(io.BytesIO(), vector.value),
}


@pytest.mark.parametrize("around", [transform.jit, transform.checkpoint])
@pytest.mark.parametrize("name", SAVING)
def test_who_saves_in_a_trace_is_told_to_save_after_it(name: str, around: Any) -> None:
    def step(x: Any) -> Any:
        vector.value = vector.value * x
        SAVING[name]()
        return x

    with pytest.raises(jax.errors.JAXTypeError) as info:
        around(step)(2.0)
    (note,) = [note for note in info.value.__notes__ if "traced" in note]
    assert "Save it after the call has returned" in note and "static_argnums" not in note
    assert "State 'vector'" in note
