"""The public names, their homes, their signatures and their documentation."""

from __future__ import annotations

import inspect
import types
from typing import Any

import jax
import pytest

import statetransform as st
from statetransform import transform

FACE = {
    "BudgetError", "MemoryBudget", "Param", "RandomState", "RetraceWarning", "StaleReadWarning", "State",
    "StateAxisError", "StateStructureError", "StateTraceError", "StateTransformError",
    "Values", "__version__", "attr", "load_state_dict", "register_state_type", "schedule", "state_dict", "states",
    "transform", "update", "values",
}  # fmt: skip
TRANSFORMS = {
    "associative_scan", "checkify", "checkpoint", "cond", "custom_jvp", "custom_vjp",
    "discard_writes", "eval_shape", "for_loop", "fori_loop", "functionalize", "grad", "hessian", "jacfwd",
    "jacrev", "jit", "jvp", "lift", "linearize", "make_jaxpr", "map", "named_call", "remat",
    "scan", "shard_map", "switch", "value_and_grad", "vjp", "vmap", "while_loop",
}  # fmt: skip
REPORTS = {
    "compare", "cost", "explain_retrace", "fwd_bwd", "largest", "peak", "print_saved_residuals", "residuals",
    "timeline",
}  # fmt: skip
OF_JAX = {
    name: getattr(home, name)
    for name in sorted(TRANSFORMS - {"checkify", "discard_writes", "for_loop", "functionalize", "lift", "remat"})
    for home in (jax, jax.lax)
    if hasattr(home, name)
}
DERIVATIVES = ("grad", "value_and_grad", "vjp", "jvp", "linearize", "jacfwd", "jacrev", "hessian")
# What is private or on its way out in JAX itself.
NOT_KEPT = {"device", "backend", "saveable_args", "in_nzs", "concrete"}


def test_the_face_has_at_least_the_names_of_the_contract() -> None:
    assert set(st.__all__) >= FACE
    assert all(hasattr(st, name) for name in st.__all__)
    assert sorted(st.__all__) == sorted(set(st.__all__))


def test_every_transform_of_the_contract_is_there() -> None:
    assert set(transform.__all__) >= TRANSFORMS
    assert all(callable(getattr(transform, name)) for name in transform.__all__)


def test_objects_of_the_contract_are_and_derive_what_it_says() -> None:
    assert transform.remat is transform.checkpoint
    assert issubclass(st.Param, st.State) and issubclass(st.RandomState, st.State)
    assert issubclass(st.RetraceWarning, UserWarning)
    for error in (st.StateTraceError, st.StateStructureError, st.StateAxisError):
        assert issubclass(error, st.StateTransformError)


def test_public_objects_say_that_they_live_in_the_package() -> None:
    for name in FACE - {"__version__", "transform"}:
        assert (getattr(st, name).__module__, getattr(st, name).__qualname__) == ("statetransform", name)


def test_transforms_say_that_they_live_in_transform_and_are_documented_with_an_example() -> None:
    for name in TRANSFORMS:
        found, kept = getattr(transform, name), "checkpoint" if name == "remat" else name
        assert (found.__module__, found.__name__) == ("statetransform.transform", kept)
        assert ">>>" in (found.__doc__ or ""), name


def test_reports_say_where_they_live_and_are_documented() -> None:
    for name in {*st.inspect.__all__, *REPORTS}:
        report = getattr(st.inspect, name)
        assert report.__module__ == "statetransform.inspect" and report.__doc__, name
        sections = ("References:", "Example:", ">>>") if name in REPORTS else ()
        for section in (*sections, *(("Args:", "Raises:") if name in REPORTS - {"peak"} else ())):
            assert section in report.__doc__, (name, section)


@pytest.mark.parametrize("name", OF_JAX)
def test_a_transform_keeps_the_names_order_and_defaults_of_jax(name: str) -> None:
    theirs = inspect.signature(OF_JAX[name]).parameters
    ours = inspect.signature(getattr(transform, name)).parameters
    kept = [p for p in theirs.values() if p.name not in NOT_KEPT and not p.name.startswith("_")]
    assert [p.name for p in kept if p.name not in ours and p.name != "f"] == []
    positional = [p.name for p in kept if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    assert [p for p in ours if p in positional][: len(positional)] == [p for p in positional if p in ours]
    for p in kept:
        default = ours[p.name].default if p.name in ours else p.default
        plain = isinstance(p.default, int | str | tuple | None) and p.name != "argnums"
        if plain and p.name != "fun":
            assert default == p.default


def parameters(name: str) -> dict[str, Any]:
    return {p.name: p.default for p in inspect.signature(getattr(transform, name)).parameters.values()}


def test_checkpoint_has_the_signature_of_the_contract() -> None:
    statics = {"static_argnums": (), "static_argnames": ()}
    options = {"prevent_cse": True, "policy": None, **statics, "concrete": False, "states": None, "methods": None}
    assert list(parameters("checkpoint").items()) == list({"fun": None, **options}.items())
    kinds = {p.kind for p in list(inspect.signature(transform.checkpoint).parameters.values())[1:]}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_what_is_added_to_jax_has_the_names_of_the_contract() -> None:
    added = {
        **{name: {"states": None} for name in DERIVATIVES},
        "jit": {"donate_states": False, "state_shardings": None},
        "vmap": {"state_axes": None, "split_rngs": True},
        "shard_map": {"state_specs": None},
        **{name: {"checkpoint": None, "progress": None} for name in ("scan", "for_loop", "fori_loop")},
        "while_loop": {"checkpoint": None, "progress": None, "max_steps": None},
    }
    for name, options in added.items():
        assert options.items() <= parameters(name).items()
    assert list(parameters("functionalize")) == ["fun", "static_argnums", "static_argnames"]


def test_the_parts_of_state_have_the_names_of_the_contract() -> None:
    assert list(inspect.signature(st.State).parameters) == ["value", "name", "static", "metadata"]
    assert list(inspect.signature(st.RandomState).parameters)[:2] == ["seed_or_key", "name"]
    assert list(inspect.signature(st.RandomState.split).parameters) == ["self", "num"]
    assert list(inspect.signature(st.states).parameters) == ["tree", "kinds"]
    assert list(inspect.signature(st.update).parameters) == ["states", "values"]


def test_no_public_name_is_that_of_a_private_module() -> None:
    assert [name for name in st.__all__ if name.startswith("_")] == ["__version__"]
    modules = {name for name in st.__all__ if isinstance(getattr(st, name), types.ModuleType)}
    assert modules == {"inspect", "policies", "transform"}
    assert isinstance(st.__version__, str)
