"""The public names, their homes and their documentation."""

from __future__ import annotations

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
    "peak",
    "explain_retrace",
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_documented_with_an_example(name):
    doc = getattr(inspect, name).__doc__
    for section in (*(("Args:", "Raises:") if name != "peak" else ()), "References:", "Example:", ">>>"):
        assert section in doc, section


@pytest.mark.parametrize("name", inspect.__all__)
def test_public_objects_say_where_they_are_imported_from(name):
    assert getattr(inspect, name).__module__ == "statetransform.inspect"
    assert getattr(inspect, name).__doc__


def test_all_functions_of_the_contract_are_there():
    assert set(FUNCTIONS) <= set(inspect.__all__)
