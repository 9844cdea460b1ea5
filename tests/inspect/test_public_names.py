"""The public names, their homes and their documentation; and where the graphics are imported."""

from __future__ import annotations

import ast
import pathlib

import pytest

from statetransform import inspect

FUNCTIONS = (
    "residuals",
    "print_saved_residuals",
    "fwd_bwd",
    "cost",
    "compare",
    "timeline",
    "largest",
    "explain_retrace",
)
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


@pytest.mark.parametrize("path", [*HOME.glob("*.py")], ids=lambda p: p.name)
def test_rich_and_matplotlib_are_imported_when_something_is_drawn(path):
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    assert not {name.partition(".")[0] for name in names} & {"rich", "matplotlib"}
