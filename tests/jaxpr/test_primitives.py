"""The primitives that the package knows by name are some that JAX has: one that is renamed shows here."""

from __future__ import annotations

import importlib
import pathlib
import re
import sys

import jax
import jax.extend.core as jex
import pytest

import statetransform

# The table is no report: users see what follows from it.
from statetransform._memory.programs.primitives import Kind, primitives_of

SOURCE = "\n".join(path.read_text() for path in pathlib.Path(statetransform.__file__).parent.rglob("*.py"))
COMPARED = re.compile(r"primitive(?:\.name)? (?:==|!=|in) (\([^)]*\)|\"[^\"]*\")")
#: In one of the releases that are tested, and not in the others.
SOME = {"closed_call", "one_minus_square"}


@pytest.fixture(scope="module")
def of_jax() -> set[str]:
    """The names of all primitives in JAX's modules."""
    for module in ("jax.numpy", "jax.scipy.linalg", "jax.ref", "jax.experimental.hijax"):
        importlib.import_module(module)
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "jax"]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, jex.Primitive)]
    return {primitive.name for primitive in found}


@pytest.mark.parametrize("kind", Kind)
def test_each_primitive_in_the_table_is_one_of_jax(kind: Kind, of_jax: set[str]) -> None:
    assert primitives_of(kind) - of_jax <= SOME


def test_each_primitive_that_is_asked_for_is_one_of_jax(of_jax: set[str]) -> None:
    asked = {name for found in COMPARED.findall(SOURCE) for name in re.findall(r'"([^"]*)"', found)}
    assert {"scan", "while", "cond", "shard_map"} <= asked
    assert asked <= of_jax


def test_functions_with_rules_are_of_the_kind_of_rules() -> None:
    f = jax.custom_jvp(lambda x: x)
    f.defjvp(lambda primals, dots: (primals[0], dots[0]))
    g = jax.custom_vjp(lambda x: x)
    g.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
    made = {eqn.primitive.name for fun in (f, g) for eqn in jax.make_jaxpr(fun)(1.0).jaxpr.eqns}
    assert made == primitives_of(Kind.RULE)
