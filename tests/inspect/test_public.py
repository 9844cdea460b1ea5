"""The public names, their homes and their documentation; and that the graphics are optional."""

from __future__ import annotations

import ast
import pathlib
import sys

import jax.numpy as jnp
import pytest

from statetransform import State, inspect, transform

FUNCTIONS = ("residuals", "print_saved_residuals", "fwd_bwd", "cost", "compare", "timeline", "explain_retrace")
HOME = pathlib.Path(inspect.__file__).parent


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_documented_with_an_example(name):
    doc = getattr(inspect, name).__doc__
    for section in ("Args:", "Raises:", "References:", "Example:", ">>>"):
        assert section in doc, section


@pytest.mark.parametrize("name", inspect.__all__)
def test_public_objects_say_where_they_are_imported_from(name):
    assert getattr(inspect, name).__module__ == "statetransform.inspect"
    assert getattr(inspect, name).__doc__


def test_all_functions_of_the_contract_are_there():
    assert set(FUNCTIONS) <= set(inspect.__all__)


@pytest.mark.parametrize("path", [p for p in HOME.glob("*.py") if p.name != "_render.py"], ids=lambda p: p.name)
def test_rich_and_matplotlib_are_imported_in_one_module(path):
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    assert not {name.partition(".")[0] for name in names} & {"rich", "matplotlib"}


def test_the_repr_of_every_public_object_tells_what_it_holds():
    w = State(jnp.ones(4), name="w")
    f = transform.jit(lambda x: jnp.sin(w.value * x).sum())
    f(jnp.ones(4))
    found = inspect.residuals(f, jnp.ones(4))
    line, both, traces = (
        inspect.timeline(f, jnp.ones(4)),
        inspect.compare({"f": f}, jnp.ones(4)),
        inspect.explain_retrace(f),
    )
    objects = [found, found[0], found.by("kind"), inspect.cost(f, jnp.ones(4)), inspect.fwd_bwd(f, jnp.ones(4))]
    objects += [line, line[0], both, both[0], traces, traces[0], traces[0].changes[0]]
    assert {type(obj).__name__ for obj in objects} == {name for name in inspect.__all__ if name[0].isupper()}
    for obj in objects:
        assert " object at 0x" not in repr(obj)
        assert repr(obj)


def test_every_report_prints_without_rich_and_matplotlib(monkeypatch):
    for name in ("rich", "rich.table", "rich.console", "rich.text", "matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    f = lambda x: jnp.sin(x).sum()
    x = jnp.ones(4)
    reports = [inspect.residuals(f, x), inspect.cost(f, x), inspect.compare({"f": f}, x), inspect.timeline(f, x)]
    for report in [*reports, reports[0].by("kind"), inspect.fwd_bwd(f, x)]:
        assert str(report) == repr(report)
        assert report._repr_html_().startswith("<")
    for report in reports:
        with pytest.raises(ImportError, match="pip install rich"):
            report.__rich__()
    with pytest.raises(ImportError, match="pip install matplotlib"):
        reports[-1].plot()


def test_every_report_renders_in_rich():
    console = pytest.importorskip("rich.console")
    import io

    f = lambda x: jnp.sin(x).sum()
    x = jnp.ones(4)
    for report in (inspect.residuals(f, x), inspect.cost(f, x), inspect.compare({"f": f}, x), inspect.timeline(f, x)):
        out = io.StringIO()
        console.Console(file=out, width=200).print(report)
        assert report.table().title in out.getvalue()
        assert all(cell in out.getvalue() for row in report.table().rows for cell in row)
