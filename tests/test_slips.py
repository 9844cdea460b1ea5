"""Slips that people make who come from JAX, flax or NumPy: each is answered with what to write."""

from __future__ import annotations

import dataclasses
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import statetransform as st
from statetransform import (
    Param,
    RandomState,
    State,
    StateAxisError,
    StateTraceError,
    policies,
    transform,
)

X = jnp.ones(3)


def double(x: Any) -> Any:
    return 2 * x


def summed(x: Any) -> Any:
    return x.sum()


def pure() -> Any:
    return transform.functionalize(double)


w = Param(1.0, name="w")

SLIPS: dict[str, tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = {
    "a negative length": (lambda: transform.for_loop(lambda: None, length=-1), ValueError,
        ("for_loop: `length` must be 0 or more, not -1",)),
    "an option of loops for a function": (lambda: transform.checkpoint(double, checkpoint=20), TypeError,
        ("`checkpoint=` is an option of loops", "`policy=`")),
    "values that are missing": (lambda: pure().apply(2.0), TypeError,
        ("the first argument must be a mapping from State to value", "2.0 of type float", "pure.values(*args)")),
    "values by name": (lambda: pure().apply({"u": 1.0}, 2.0), TypeError,
        ("has the key 'u' of type str", "pure.values(*args)")),
    "a call of the pure function": (lambda: pure()(2.0), TypeError,
        ("is not called itself", "pure.apply(pure.values(*args), *args)")),
    "an option of another number": (lambda: transform.grad(double, state=w), TypeError,
        ("grad: got an unexpected keyword argument 'state'", "Did you mean `states`")),
    "an option of a loop in the plural": (
        lambda: transform.for_loop(double, X, checkpoints=3), TypeError,  # type: ignore[call-arg]
        ("got an unexpected keyword argument 'checkpoints'", "Did you mean 'checkpoint'?")),
    "an option of a loop that JAX would have to know": (
        lambda: transform.scan(lambda c, x: (c, x), 1.0, X, chekpoint=3), TypeError,
        ("got an unexpected keyword argument 'chekpoint'", "Did you mean 'checkpoint'?")),
    "an option of checkpoint in the plural": (lambda: transform.checkpoint(double, policies=None), TypeError,
        ("got an unexpected keyword argument 'policies'", "Did you mean 'policy'?")),
    "an option of a report": (lambda: st.inspect.residuals(double, 1.0, state=w), TypeError,
        ("got an unexpected keyword argument 'state'", "Did you mean 'states'?")),
    "no states to differentiate with respect to": (
        lambda: transform.grad(summed, states=st.states({"u": State(1.0)}, Param))(X), ValueError,
        ("grad: `states=` has no state in it", "no state of this kind", "states=st.states(model, st.Param)")),
    "a class of states to differentiate with respect to": (lambda: transform.grad(summed, states=Param)(X), TypeError,
        ("but is the class Param", "states=st.states(model, st.Param)")),
    "no arguments to differentiate with respect to": (lambda: transform.grad(lambda: 1.0)(), TypeError,
        ("was called with 0. To differentiate with respect to states, write `states=",)),
    "argnums that are no integers": (lambda: transform.grad(jnp.sum, argnums=[None]), TypeError,
        ("grad: argnums must be an int or a sequence of ints, not ", "write `states=")),
    "values of states among the primals": (
        lambda: transform.jvp(lambda x: w.value * x, (w.value, 1.0), (1.0, 1.0), states=w), TypeError,
        ("read and not passed; ", "one for each of the 2 primals given, 3 in all, not 2")),
    "states of a class": (lambda: st.states(Param), TypeError,
        ("a container of states, not the class Param",)),
    "a policy for a loop": (
        lambda: transform.for_loop(double, X, policy=policies.dots_saveable), TypeError,  # type: ignore[call-arg]
        ("A policy belongs to a function", "transform.for_loop(transform.checkpoint(body, policy=...)")),
    "a policy for a loop of unknown length": (
        lambda: transform.while_loop(  # type: ignore[call-arg]
            lambda c: c < 3, double, 1.0, policy=policies.dots_saveable), TypeError,
        ("transform.while_loop(transform.checkpoint(body, policy=...)",)),
    "a range to loop over": (lambda: transform.for_loop(double, range(3)), TypeError,
        ("for_loop: `xs` must hold arrays, not a range", "`jnp.arange(n)`")),
    "a body that wants the index": (lambda: transform.for_loop(double, length=3), TypeError,
        ("calls the body without arguments", "`jnp.arange(n)`")),
    "a seed that is a float": (lambda: RandomState(1.5), TypeError,
        ("RandomState: expected an integer seed or a random key, not 1.5 of type float", "RandomState(0)")),
    "pmap": (lambda: transform.pmap, AttributeError,
        ("has no attribute 'pmap'", "`transform.jit`", "`transform.shard_map`")),
    "custom_remat": (lambda: transform.custom_remat, AttributeError,
        ("has no attribute 'custom_remat'", "`f.defremat(fwd, rem, bwd)`", "`transform.checkpoint(f, policy=...)`")),
    "a transform looked up in the package": (lambda: st.jit, AttributeError,  # type: ignore[attr-defined]
        ("has no attribute 'jit'", "`transform.jit`")),
    "a policy looked up in the package": (lambda: st.fit, AttributeError,  # type: ignore[attr-defined]
        ("has no attribute 'fit'", "`policies.fit` (`from statetransform import policies`)")),
    "a report looked up among policies": (lambda: policies.residuals, AttributeError,  # type: ignore[attr-defined]
        ("`inspect.residuals` (`from statetransform import inspect`)",)),
    "a state looked up among transforms": (lambda: transform.State, AttributeError,
        ("`st.State` (`import statetransform as st`)",)),
    "another word for a policy": (lambda: policies.budget, AttributeError, ("`policies.fit`",)),
    "another word for a report": (lambda: st.inspect.memory, AttributeError, ("`inspect.residuals`",)),
    "another word for saving": (lambda: st.save, AttributeError, ("`st.state_dict`",)),  # type: ignore[attr-defined]
    "bytes without a unit": (lambda: st.MemoryBudget("1e9"), ValueError,
        ("'1e9' has no unit. Write '1e9B' or a number for bytes",)),
    "gigabytes without a unit": (lambda: policies.fit("2"), ValueError,
        ("'2' has no unit. Write '2GB' or '2MiB', or a number for bytes.",)),
    "a name that is nowhere": (lambda: st.nothing, AttributeError,  # type: ignore[attr-defined]
        ("has no attribute 'nothing'",)),
    "a text as an argument": (lambda: transform.jit(lambda x, mode: x)(X, "same"), TypeError,
        ("argument `mode` is 'same'", "`static_argnums`")),
    "an object that is no state to differentiate with respect to": (
        lambda: transform.grad(double, states={"u": 1.0})(1.0), TypeError,
        ("`states=` must be a State or a pytree of States, but has a leaf of type float", "st.states(")),
    "a state twice": (lambda: transform.grad(double, states=(w, w))(1.0), ValueError,
        ("a state is listed twice in `states=`",)),
    "a position that no argument has": (lambda: transform.grad(double, argnums=2)(1.0), TypeError,
        ("argnums=2 needs at least 3 positional", "was called with 1")),
    "a state as what is differentiated": (lambda: transform.grad(lambda s: s.value.sum())(w), TypeError,
        ("argument 0 is passed by reference", "`states=st.states(model, st.Param)`")),
    "no pair": (lambda: transform.scan(lambda c, x: c, 1.0, None, 3), TypeError,
        ("scan: the body must return a pair (carry, y)",)),
    "a scalar to loop over": (lambda: transform.scan(lambda c, x: (c, x), 1.0, 2.0), ValueError,
        ("leading axis",)),
    "concrete": (lambda: transform.checkpoint(double, concrete=True), NotImplementedError,
        ("`static_argnums`", "`jax.ensure_compile_time_eval()`")),
    "a reference of JAX under checkpoint": (
        lambda: jax.jit(lambda: transform.checkpoint(lambda r: r[...])(jax.new_ref(1.0)))(), TypeError,
        ("is a `jax.Ref`", "repeat the writes", "`State`")),
    "a text in a state": (lambda: State("hello", name="text"), TypeError,
        ("State 'text' (created at test_slips.py:", "is given a value of type str", "static=True")),
    "an object in the value of a state": (
        lambda: setattr(State(1.0, name="number"), "value", {"a": object()}), TypeError,
        ("State 'number'",)),
    "a list in a static state": (lambda: State([1], static=True), TypeError,
        ("not hashable",)),
    "the length first": (lambda: transform.for_loop(100, lambda: 1), TypeError,  # type: ignore[arg-type]
        ("`for_loop(f, length=100)`",)),
    "the length as xs": (lambda: transform.for_loop(lambda: 1, 100), ValueError,
        ("for_loop: ", "write `length=100`")),
    "no body": (lambda: transform.scan(3, 0.0, length=2), TypeError,  # type: ignore[arg-type]
        ("scan: expected a function, not 3",)),
    "no condition": (lambda: transform.while_loop(True, lambda c: c, 0), TypeError,  # type: ignore[arg-type]
        ("expected a function, not True",)),
    "no branch": (lambda: transform.cond(True, lambda x: x, 3, 1.0), TypeError,  # type: ignore[arg-type]
        ("false_fun must be a function, not 3",)),
    "step without a limit": (
        lambda: transform.while_loop(lambda c: c < 2, lambda c: c + 1, 0, checkpoint="step"), ValueError,
        ("checkpoint=20, ", "`max_steps=`")),
}  # fmt: skip


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


def test_a_module_of_equinox_that_names_an_axis_is_partitioned_as_the_error_says() -> None:
    eqx = pytest.importorskip("equinox")
    norm, held = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, axis_name="batch", mode="batch")
    xs = jnp.arange(12.0).reshape(4, 3) ** 2

    def loss(norm: Any) -> Any:
        out, _ = jax.vmap(norm, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(xs, held)
        return (jnp.sin(out) ** 3).sum()

    for wrap in (transform.jit, lambda f: eqx.filter_grad(transform.checkpoint(f))):
        with pytest.raises(TypeError, match=r"norm.axis_name` is 'batch'.*`params, static = eqx.partition\(model"):
            wrap(loss)(norm)
    params, static = eqx.partition(norm, eqx.is_array)
    combined = lambda params: loss(eqx.combine(params, static))
    found = transform.jit(transform.grad(eqx.filter_checkpoint(transform.checkpoint(combined))))(params)
    expected = eqx.filter_grad(loss)(norm)
    assert jnp.allclose(found.weight, expected.weight) and jnp.allclose(found.bias, expected.bias)


def test_the_kind_of_parameters_of_nnx_is_named_when_it_is_there() -> None:
    pytest.importorskip("flax.nnx")
    with pytest.raises(TypeError, match=r"`st.states\(model, nnx.Param\)` for a model of flax.nnx"):
        transform.grad(summed)(w)


def test_a_gradient_with_respect_to_no_states_and_an_argument_is_one() -> None:
    by_state, by_x = transform.grad(summed, argnums=0, states={})(X)
    assert by_state == {} and by_x.tolist() == [1.0] * 3


@pytest.mark.parametrize(
    "loop",
    [
        lambda x: transform.scan(lambda c, _: (c, None), x, length=2),
        lambda x: transform.fori_loop(0, 2, lambda i, c: c, x),
        lambda x: transform.while_loop(lambda c: False, lambda c: c, x),
        lambda x: transform.for_loop(lambda x: None, x),
        lambda x: transform.cond(True, lambda x: None, lambda x: None, x),
        lambda x: transform.switch(0, [lambda x: None, lambda x: None], x),
        lambda x: transform.map(lambda x: 1.0, x),
        lambda x: transform.jit(lambda: transform.scan(lambda c, _: (c, None), x, length=2))(),
        lambda x: transform.vjp(lambda x: 1.0, x),
    ],
    ids=["scan", "fori_loop", "while_loop", "for_loop", "cond", "switch", "map", "scan in jit", "vjp"],
)
def test_what_is_no_array_in_a_carry_is_named_with_the_cure(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"x": X, "activation": jnp.tanh}
    monkeypatch.delitem(sys.modules, "equinox", raising=False)
    with pytest.raises(TypeError, match=r"argument `\w+(\[0\])?\['activation'\]` is .* Take it out of the pytree"):
        loop(model)
    monkeypatch.setitem(sys.modules, "equinox", types.ModuleType("equinox"))
    with pytest.raises(TypeError, match=r"argument `\w+(\[0\])?\['activation'\]` .*`params, static = eqx.partition"):
        loop(model)
    with pytest.raises(TypeError, match=r"argument `\w+(\[0\])?` is 'text' of type str, .* Close over it"):
        loop("text")


def test_an_error_of_jax_in_a_body_keeps_its_text() -> None:
    with pytest.raises(TypeError, match=r"sin requires|not a valid JAX type|str"):
        transform.scan(lambda c, _: (jnp.sin("text"), None), 1.0, length=2)  # type: ignore[arg-type]


def test_a_state_written_in_a_batch_of_map_is_refused_in_words_of_map() -> None:
    total = State(0.0, name="total")

    def add(x: Any) -> Any:
        total.value = total.value + x
        return x

    for size in (1, 2, 4, 100):
        with pytest.raises(StateAxisError) as caught:
            transform.map(add, jnp.arange(6.0), batch_size=size)
        said = str(caught.value)
        assert said.startswith("map: State 'total'") and "state_axes" not in said and "`batch_size=`" in said
        assert total.value == 0.0
    total.value += transform.map(lambda x: x, jnp.arange(6.0), batch_size=2).sum()
    assert total.value == 15.0


def test_a_state_as_the_default_of_a_dataclass_is_a_warning() -> None:
    said = r"State 'u' .* default of the field 'u' of .*Model, so all instances share it.*default_factory=lambda: State"
    for annotation in (State, "State", "st.State[jax.Array] | None"):
        with pytest.warns(UserWarning, match=said) as caught:
            dataclasses.dataclass(type("Model", (), {"__annotations__": {"u": annotation}, "u": State(0.0, name="u")}))
        assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Shared:
            u = State(0.0)
            v: ClassVar[State] = State(0.0)

        @dataclasses.dataclass
        class Model:
            u: State = dataclasses.field(default_factory=lambda: State(0.0))

    assert Model().u is not Model().u and Shared().u is Shared().u


def test_a_transform_in_a_linen_module_is_told_what_linen_has() -> None:
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(x)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return transform.checkpoint(Block)()(x)

    with pytest.raises(StateTraceError, match=r"(?s)of Scope still holds .* use `nn.remat`.*module.apply\(variables"):
        Net().init(jax.random.key(0), jnp.ones((2, 3)))
