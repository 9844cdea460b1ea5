"""treescope, which comes with flax, shows states with their values, and reports by their titles and tables."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import pytest

from statetransform import Param, State, inspect, policies, transform

with warnings.catch_warnings(action="ignore"):  # of its own imports
    treescope = pytest.importorskip("treescope")

pytestmark = pytest.mark.filterwarnings("default")  # it imports modules of others when it first shows something


def test_a_state_shows_its_value_name_and_metadata() -> None:
    w = Param({"a": jnp.ones((2, 3))}, name="w", unit="mV")
    shown = treescope.render_to_text(w)
    assert shown.startswith("Param(\n  value={\n    'a': ") and "jax.Array float32(2, 3)" in shown
    assert "name='w'" in shown and "unit='mV'" in shown
    assert treescope.render_to_text(State(True, static=True)).startswith("State(value=True, static=True)")


def test_a_state_shows_a_tracer_while_it_is_traced() -> None:
    u, shown = State(jnp.zeros(3), name="u"), []

    @transform.jit
    def step(x: float) -> None:
        u.value = u.value + x
        shown.append(treescope.render_to_text(u))

    step(1.0)
    assert "JitTracer" in shown[0]
    assert "JitTracer" not in treescope.render_to_text(u)


def test_a_report_shows_its_title() -> None:
    f = lambda x: jnp.sin(jnp.sin(x)).sum()
    for report in (inspect.residuals(f, jnp.ones(3)), policies.plan(f, jnp.ones(3))):
        title = report.table().title
        assert treescope.render_to_text(report).startswith(f"<{type(report).__name__}: {title}>")
