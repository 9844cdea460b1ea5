"""Guarantee 9: what cannot work raises, names the state and its birthplace, and says what to do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import State, transform

HERE = r"\(created at test_9_refusals.py:\d+\)"


def _writes(s: State) -> Any:
    def f(x: Any) -> Any:
        s.value = s.value + x
        return s.value

    return f


RAW = {
    "jit": lambda f: jax.jit(f)(1.0),
    "grad": lambda f: jax.grad(f)(1.0),
    "vmap": lambda f: jax.vmap(f)(jnp.ones(2)),
    "scan": lambda f: jax.lax.scan(lambda c, _: (f(c), None), 1.0, None, length=2),
    "cond": lambda f: jax.lax.cond(True, f, lambda x: x, 1.0),
    "checkpoint": lambda f: jax.checkpoint(f)(1.0),
}


@pytest.mark.filterwarnings("ignore::statetransform.StaleReadWarning")
@pytest.mark.parametrize("around", [None, "jit", "checkpoint", "grad"])
@pytest.mark.parametrize("raw", RAW)
def test_a_write_inside_a_raw_jax_transform_is_refused_where_it_stands(raw: str, around: str | None) -> None:
    s = State(jnp.float32(1), name="u")
    f = lambda x: RAW[raw](_writes(s))
    f = f if around is None else getattr(transform, around)(f)
    with pytest.raises(st.StateTraceError, match=f"State 'u' {HERE} is written inside a raw JAX transform") as info:
        f(1.0)
    for clause in ("Nothing was changed", "`transform.jit`", "transform.functionalize"):
        assert clause in str(info.value)
    assert any(entry.name == "f" and entry.path.name == "test_9_refusals.py" for entry in info.traceback)
    assert s.value == 1.0


@pytest.mark.filterwarnings("ignore::statetransform.StaleReadWarning")
@pytest.mark.parametrize("inner", ["jit", "checkpoint", "grad"])
def test_a_transformed_function_that_writes_is_refused_inside_a_raw_transform(inner: str) -> None:
    s = State(jnp.float32(1), name="u")
    f = getattr(transform, inner)(_writes(s))
    f(0.0), f(0.0)
    for raw in ("jit", "grad", "scan", "cond"):
        with pytest.raises(st.StateTraceError, match="State 'u'"):
            RAW[raw](f)
        assert s.value == 1.0


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (lambda v: jnp.zeros(4), r"on entry : float32\[3\]\n  after    : float32\[4\]   \(written at .*\)"),
        (lambda v: v.astype(jnp.int32), r"after    : int32\[3\](.|\n)*astype\(u.value.dtype\)"),
        (lambda v: {"a": v}, r"after    : \{'a': float32\[3\]\}(.|\n)*full structure before the loop"),
    ],
    ids=["shape", "dtype", "structure"],
)
@pytest.mark.parametrize("loop", ["scan", "for_loop", "fori_loop", "while_loop"])
def test_a_carry_that_changes_its_type_is_refused_with_both_types(loop: str, after: Any, text: str) -> None:
    u = State(jnp.zeros(3), name="u")

    def write() -> None:
        u.value = after(u.value)

    calls = {
        "scan": lambda: transform.scan(lambda c, _: (write(), (c, None))[1], 0.0, None, length=2),
        "for_loop": lambda: transform.for_loop(lambda x: write(), jnp.arange(2)),
        "fori_loop": lambda: transform.fori_loop(0, 2, lambda i, c: (write(), c)[1], 0.0),
        "while_loop": lambda: transform.while_loop(lambda c: c < 2, lambda c: (write(), c + 1)[1], 0),
    }
    message = f"{loop}: the body changes the type of State 'u' {HERE}.\n  " + r"(.|\n)*" + text
    with pytest.raises(st.StateStructureError, match=message):
        calls[loop]()
    assert u.value.shape == (3,)
