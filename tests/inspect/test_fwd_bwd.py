"""The forward and the backward pass side by side."""

from __future__ import annotations

import io
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from statetransform import State, inspect, transform

X = jnp.ones(3)


class Model:
    def __init__(self) -> None:
        self.w = State(jnp.ones((3, 3)), name="w")
        self.count = State(0, name="count")

    def __call__(self, x):
        self.count.value = self.count.value + 1
        return jnp.sin(self.w.value @ x)


def test_states_arguments_and_residuals_stand_under_their_names():
    found = inspect.fwd_bwd(Model(), X)
    assert found.states == ("w", "count")
    assert found.forward[0].split() == ["in", "x:f32[3],", "w:f32[3,3],", "count:i32[]"]
    assert found.backward[-1].startswith("out   d x = ")
    assert "d w = " in found.backward[-1]
    assert str(found).endswith("states: w, count")
    keep = next(line for line in found.forward if line.startswith("keep"))
    assert keep.removeprefix("keep").strip() == found.backward[0].removeprefix("kept").strip()


def test_colours_that_jax_prints_on_a_terminal_are_no_text():
    """JAX decides at its import whether its output is a terminal."""
    program = """
import jax._src.pretty_printer as printer
printer.CAN_USE_COLOR = True
import jax, jax.numpy as jnp
from statetransform import inspect
f = lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) @ c, None), x, length=2)[0].sum()
assert chr(27) in str(jax.make_jaxpr(f)(jnp.ones((2, 2))))
found = inspect.fwd_bwd(f, jnp.ones((2, 2)))
assert "dot_general" in str(found) and chr(27) not in str(found) + found._repr_html_()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_equations_are_as_jax_prints_them_but_for_names():
    w = State(jnp.ones((3, 3)), name="w")
    step = lambda c, _: (jnp.sin(w.value @ c), None)
    found = inspect.fwd_bwd(lambda x: lax.scan(step, x, None, length=4)[0], X)
    (head,) = [line for line in found.forward if line.endswith(" = scan[")]
    assert head == "v0:f32[3] r0:f32[4,3] r1:f32[4,3] = scan["
    assert {"  length=4", "      d:f32[3] = sin c", "] w x"} <= set(found.forward)
    assert not any("sharding=Unspecified" in line for line in inspect.fwd_bwd(jax.jit(jnp.sin), X).forward)


def test_recomputation_shows_in_the_backward_pass():
    found = inspect.fwd_bwd(transform.checkpoint(Model()), X)
    assert not any("cos" in line for line in found.forward)
    assert any("dot_general" in line for line in found.backward)
    assert any("cos" in line for line in found.backward)


def test_the_halves_are_two_columns_in_text_in_rich_and_in_html():
    console = pytest.importorskip("rich.console")
    found = inspect.fwd_bwd(lambda x: Model()(x), X)
    head, _, *lines = str(found).splitlines()
    at = head.index("backward of <lambda>")
    assert 0 < at < 80
    assert [line[:at].rstrip() for line in lines][: len(found.forward)] == found.forward
    assert [line[at:] for line in lines][: len(found.backward)] == found.backward
    out = io.StringIO()
    console.Console(file=out, width=160).print(found)
    assert "backward of <lambda>" in out.getvalue()
    assert all(line in out.getvalue() for line in found.backward)
    html = found._repr_html_()
    assert "forward of &lt;lambda&gt;" in html
    assert html.count("<td") == 2
    assert "\n".join(found.backward) in html
