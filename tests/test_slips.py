"""Common slips: what a message says, and what it says to write instead."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import statetransform as st
from statetransform import Param, RandomState, State, policies, transform

X = jnp.ones(3)


def double(x: Any) -> Any:
    return 2 * x


def summed(x: Any) -> Any:
    return x.sum()


def pure() -> Any:
    return transform.functionalize(double)


w = Param(1.0, name="w")

SLIPS: dict[str, tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = {
    "a negative length": (
        lambda: transform.for_loop(lambda: None, length=-1),
        ValueError,
        ("for_loop: `length` must be 0 or more, not -1",),
    ),
    "a negative length of a scan": (
        lambda: transform.scan(lambda c, _: (c, None), 0.0, length=np.int32(-2)),
        ValueError,
        ("scan: `length` must be 0 or more, not -2",),
    ),
    "a class in the place of a budget": (
        lambda: transform.for_loop(double, X, checkpoint=st.MemoryBudget),  # type: ignore[arg-type]
        TypeError,
        ("for_loop: MemoryBudget is not a budget yet", 'checkpoint=st.MemoryBudget("2GiB")'),
    ),
    "a function in the place of a budget": (
        lambda: transform.for_loop(double, X, checkpoint=policies.fit),  # type: ignore[arg-type]
        TypeError,
        ('checkpoint=st.MemoryBudget("2GiB")',),
    ),
    "a class in the place of a policy": (
        lambda: transform.checkpoint(double, policy=st.MemoryBudget),
        TypeError,
        ('policy=st.MemoryBudget("2GiB")',),
    ),
    "a maker of budgets in the place of a policy": (
        lambda: transform.checkpoint(double, policy=policies.fit),
        TypeError,
        ('policy=policies.fit("2GiB")',),
    ),
    "a size in the place of a policy": (
        lambda: transform.checkpoint(double, policy="1MB"),
        TypeError,
        ("not the text '1MB'", "policy=policies.fit('1MB')"),
    ),
    "a number in the place of a policy": (
        lambda: transform.checkpoint(double, policy=1000),
        TypeError,
        ("policy=policies.fit(1000)", "policies.save_larger_than(1000)"),
    ),
    "an option of loops for a function": (
        lambda: transform.checkpoint(double, checkpoint=20),
        TypeError,
        ("`checkpoint=` is an option of loops", "`policy=`"),
    ),
    "a size without a unit": (
        lambda: st.MemoryBudget("2"),
        ValueError,
        ("'2' has no unit", "'2GB'"),
    ),
    "values that are missing": (
        lambda: pure().apply(2.0),
        TypeError,
        ("apply: the first argument must be a mapping from State to value", "2.0 of type float", "pure.values(*args)"),
    ),
    "values by name": (
        lambda: pure().apply({"u": 1.0}, 2.0),
        TypeError,
        ("has the key 'u' of type str", "pure.values(*args)"),
    ),
    "a call of the pure function": (
        lambda: pure()(2.0),
        TypeError,
        ("is not called itself", "pure.apply(pure.values(*args), *args)"),
    ),
    "an option of another number": (
        lambda: transform.grad(double, state=w),
        TypeError,
        ("grad: got an unexpected keyword argument 'state'", "Did you mean `states`"),
    ),
    "no states to differentiate with respect to": (
        lambda: transform.grad(summed, states=st.states({"u": State(1.0)}, Param))(X),
        ValueError,
        ("grad: `states=` has no state in it", "no state of this kind", "states=st.states(model, st.Param)"),
    ),
    "a class of states to differentiate with respect to": (
        lambda: transform.grad(summed, states=Param)(X),
        TypeError,
        ("but is the class Param", "states=st.states(model, st.Param)"),
    ),
    "states of a class": (lambda: st.states(Param), TypeError, ("a container of states, not the class Param",)),
    "states of nothing": (lambda: st.states(None), TypeError, ("a container of states, not None",)),
    "a range to loop over": (
        lambda: transform.for_loop(double, range(3)),
        TypeError,
        ("for_loop: `xs` must hold arrays, not a range", "`jnp.arange(n)`"),
    ),
    "a body that wants the index": (
        lambda: transform.for_loop(double, length=3),
        TypeError,
        ("calls the body without arguments", "`jnp.arange(n)`"),
    ),
    "a policy for a loop": (
        lambda: transform.for_loop(double, X, policy=policies.dots_saveable),  # type: ignore[call-arg]
        TypeError,
        ("A policy belongs to a function", "transform.for_loop(transform.checkpoint(body, policy=...)"),
    ),
    "a policy for a loop of unknown length": (
        lambda: transform.while_loop(lambda c: c < 3, double, 1.0, policy=policies.dots_saveable),  # type: ignore[call-arg]
        TypeError,
        ("transform.while_loop(transform.checkpoint(body, policy=...)",),
    ),
    "a number of bytes for a number of carries": (
        lambda: transform.for_loop(double, X, checkpoint=2e9),  # type: ignore[arg-type]
        TypeError,
        ("or for a number of bytes `st.MemoryBudget(",),
    ),
    "a seed that is a float": (
        lambda: RandomState(1.5),
        TypeError,
        ("RandomState: expected an integer seed or a random key, not 1.5 of type float", "RandomState(0)"),
    ),
    "a seed that is a text": (lambda: RandomState("a"), TypeError, ("not 'a' of type str",)),
    "pmap": (
        lambda: transform.pmap,
        AttributeError,
        ("has no attribute 'pmap'", "`transform.jit`", "`transform.shard_map`"),
    ),
    "a transform looked up in the package": (
        lambda: st.jit,  # type: ignore[attr-defined]
        AttributeError,
        ("has no attribute 'jit'", "`transform.jit`"),
    ),
    "a name that is nowhere": (lambda: st.nothing, AttributeError, ("has no attribute 'nothing'",)),  # type: ignore[attr-defined]
    "a text within an argument": (
        lambda: transform.jit(lambda p: p["x"])({"x": X, "mode": "same"}),
        TypeError,
        ("argument `p['mode']` is 'same'",),
    ),
    "a text as an argument": (
        lambda: transform.jit(lambda x, mode: x)(X, "same"),
        TypeError,
        ("argument `mode` is 'same'", "`static_argnums`"),
    ),
}


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_is_answered_with_what_to_write(name: str) -> None:
    use, kind, clauses = SLIPS[name]
    with pytest.raises(kind) as caught:
        use()
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    for clause in clauses:
        assert clause in said


class Other(State):
    """A kind; no function here uses a state of it."""


def is_large(state: State) -> bool:
    """A predicate that no state here satisfies."""
    return jnp.size(state.value) > 1000


def test_a_kind_that_maps_no_state_is_a_warning() -> None:
    f = lambda x: x * w.value
    said = r"`{}` lists {}, but .* uses no state of this kind. It uses Param 'w' \(created at test_slips.py:"
    with pytest.warns(UserWarning, match=said.format("state_axes", "Other")):
        assert transform.vmap(f, state_axes={Other: 0})(X).tolist() == [1.0] * 3
    with pytest.warns(UserWarning, match=said.format("state_axes", "is_large")):
        transform.vmap(f, state_axes={is_large: 0})(X)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.warns(UserWarning, match=said.format("state_shardings", "Other")):
        transform.jit(f, state_shardings={Other: sharding})(X)
    over = {"mesh": jax.make_mesh((1,), ("i",), devices=jax.devices()[:1]), "in_specs": P(), "out_specs": P()}
    with pytest.warns(UserWarning, match=said.format("state_specs", "Other")):
        transform.shard_map(f, state_specs={Other: P("i")}, **over)(X)


def test_a_kind_that_asks_for_nothing_or_is_made_inside_is_no_warning() -> None:
    f = lambda x: x * w.value
    transform.vmap(f, state_axes={Other: None, Param: None})(X)
    transform.vmap(lambda x: Other(x), state_axes={Other: 0})(X)
    transform.jit(lambda x: Other(x), state_shardings={Other: jax.sharding.SingleDeviceSharding(jax.devices()[0])})(X)


def test_states_of_which_none_is_used_are_a_warning() -> None:
    f = transform.checkpoint(lambda x: x * w.value, states=Other)
    with pytest.warns(UserWarning, match=r"`states=` matches none of the states .* Param 'w'"):
        assert f(X).tolist() == [1.0] * 3
    mixed = Other(2.0)
    assert transform.checkpoint(lambda x: x * w.value * mixed.value, states=Other)(X).tolist() == [2.0] * 3


def test_a_module_of_equinox_with_settings_is_to_be_partitioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "equinox", types.ModuleType("equinox"))
    with pytest.raises(TypeError, match=r"argument `p\['mode'\]` .*`params, static = eqx.partition\(model"):
        transform.jit(lambda p: p["x"])({"x": X, "mode": "same"})


def test_the_kind_of_parameters_of_nnx_is_named_when_it_is_there() -> None:
    pytest.importorskip("flax.nnx")
    with pytest.raises(TypeError, match=r"`st.states\(model, nnx.Param\)` for a model of flax.nnx"):
        transform.grad(summed)(w)


def test_seeds_and_keys_of_all_kinds_are_taken() -> None:

    for seed in (3, np.int64(3), jnp.int32(3), jax.random.key(3), jax.random.PRNGKey(3), np.array([0, 3], np.uint32)):
        assert RandomState(seed).split().shape in ((), (2,))


def test_a_gradient_with_respect_to_no_states_and_an_argument_is_one() -> None:
    by_state, by_x = transform.grad(summed, argnums=0, states={})(X)
    assert by_state == {} and by_x.tolist() == [1.0] * 3


def test_no_names_are_invented_by_the_hints() -> None:
    assert not hasattr(st, "jit") and not hasattr(transform, "pmap")
    assert getattr(st, "vmap", None) is None
