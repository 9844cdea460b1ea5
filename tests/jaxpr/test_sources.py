"""Where in the user's code a value was computed, in files and in notebooks."""

from __future__ import annotations

import importlib
import sys
import types

import jax
import jax.numpy as jnp
import pytest

from statetransform import BudgetError, State, StateStructureError, StateTraceError, inspect, policies, transform

X = jnp.ones(3)


@pytest.fixture
def notebook(monkeypatch):
    """A cell of a notebook, as IPython runs it: a file of its own, which IPython calls `Cell In[3]`."""
    file = "/tmp/ipykernel_17/2081.py"
    compiler = types.SimpleNamespace(format_code_name=lambda name: ("Cell", "In[3]") if name == file else None)
    shell = types.SimpleNamespace(compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    names = {"jnp": jnp, "State": State, "transform": transform}
    code = """
w = State(jnp.ones(3), name="w")
def f(x):
    return jnp.sin(w.value * x)
g = transform.jit(f)
"""
    exec(compile(code, file, "exec"), names)
    return names


def test_a_cell_of_a_notebook_is_called_as_the_notebook_calls_it(notebook, capsys):
    found = inspect.residuals(notebook["f"], X)
    assert "Cell In[3]:4" in str(found)
    assert "ipykernel" not in str(found)
    assert {record.source for record in found if record.kind == "state"} == {"Cell In[3]:2"}
    inspect.print_saved_residuals(notebook["f"], X)
    assert "f32[3] output of cos from Cell In[3]:4:" in capsys.readouterr().out
    assert "Cell In[3]:4" in str(inspect.timeline(notebook["f"], X, compile=False).groups)


def test_a_call_from_a_cell_is_explained_with_the_cell(notebook):
    exec(compile("g(jnp.ones(3))", "/tmp/ipykernel_17/2081.py", "exec"), notebook)
    assert "Cell In[3]:1" in str(inspect.explain_retrace(notebook["g"]))


def test_an_error_about_a_state_of_a_cell_names_the_cell(notebook):
    w = notebook["w"]
    text = r"State 'w' \(created at Cell In\[3\]:2\)"
    with pytest.raises(StateTraceError, match=text):
        jax.jit(lambda x: setattr(w, "value", x))(X)
    with pytest.raises(TypeError, match=text):
        w + 1
    loop = compile(
        "transform.for_loop(lambda: setattr(w, 'value', X[:2]), length=2)", "/tmp/ipykernel_17/2081.py", "exec"
    )
    with pytest.raises(StateStructureError, match=r"written at Cell In\[3\]:1"):
        exec(loop, {**notebook, "X": X})


def test_a_policy_takes_the_place_as_it_is_printed(notebook):
    kept = lambda where: inspect.residuals(
        transform.checkpoint(lambda x: jnp.exp(notebook["f"](x)), policy=policies.save_from(where)), X
    )
    assert "sin" in {record.primitive for record in kept("Cell In[3]:4")}


def test_a_line_below_many_frames_of_the_package_is_found():
    def body(x):
        for _ in range(4):
            x = jnp.sin(x)
        return x

    nested = body
    for _ in range(12):
        nested = transform.named_call(nested, name="layer")
    line = body.__code__.co_firstlineno + 2
    assert {(r.file, r.line) for r in inspect.residuals(nested, X) if r.primitive == "cos"} == {(__file__, line)}


def test_what_the_package_computes_for_itself_is_the_users_line_that_called_it():
    u = State(X, name="u")
    jax.clear_caches()  # JAX inlines its own functions with the lines of their first call

    def f(x):
        return transform.scan(lambda c, _: (c * u.value, None), x, length=30, checkpoint=3)[0]

    assert {r.file for r in inspect.residuals(f, X) if r.file} == {__file__}


def test_the_line_of_the_users_own_is_named_besides_that_of_a_framework(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "a_framework.py").write_text("import jax.numpy as jnp\ndef dense(x, w):\n    return jnp.tanh(x @ w)\n")
    monkeypatch.syspath_prepend(str(folder))
    dense = importlib.import_module("a_framework").dense

    def model(ws):
        x = jnp.ones((64, 16))
        for w in ws:
            x = dense(x, w)
        return x.sum()

    f = transform.checkpoint(model, policy=policies.fit("5 KiB"))
    where = r"a_framework.py:3 \(dense\), called from test_sources.py:\d+ \(.*model\), needs"
    with pytest.raises(BudgetError, match=where):
        transform.grad(f)([jnp.eye(16)] * 5)
