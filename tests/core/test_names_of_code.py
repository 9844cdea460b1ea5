"""The names that a function looks up in its module, and which functions a search looks into."""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Iterator
from typing import Any

import pytest

from statetransform._objects.names import names_of
from statetransform._state import find

LOADS = {"LOAD_GLOBAL", "LOAD_NAME"}


def all_code(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from all_code(const)


@pytest.mark.parametrize("module", [find, inspect, dis, pytest])
def test_they_are_those_that_dis_shows(module: types.ModuleType) -> None:
    """Property: for every function of some modules, one with more than 256 names, and a class body, as `dis` says."""
    lines = ["def many():", "    class Inner:", "        here = there", *[f"    n{i}(n{i}.a)" for i in range(400)]]
    made: dict[str, Any] = {}
    exec("\n".join(lines), made)
    functions = [made["many"], *[f for f in vars(module).values() if isinstance(f, types.FunctionType)]]
    for function in functions:
        expected = {
            instruction.argval
            for code in all_code(function.__code__)
            for instruction in dis.get_instructions(code)
            if instruction.opname in LOADS
        }
        assert set(names_of(function.__code__).looked_up) == expected
    assert {"n399", "there", "__name__"} <= set(names_of(made["many"].__code__).looked_up)


def test_what_is_imported_is_told_from_other_names() -> None:
    def f() -> Any:
        import argparse
        from types import CodeType

        return argparse.Action, CodeType

    assert set(names_of(f.__code__).imported) == {"argparse", "types", "CodeType"}
