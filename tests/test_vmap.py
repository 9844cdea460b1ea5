"""`vmap` over states: mapped ones, shared ones, random ones and new ones."""

from __future__ import annotations

import contextvars
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import Param, RandomState, State, transform

from .tables import ONCE

XS = jnp.arange(3.0)
hidden: contextvars.ContextVar[State] = contextvars.ContextVar("hidden")


class Membrane(State):
    """A kind of its own, to select by."""


def leaky(u: State) -> Any:
    def f(x: Any) -> Any:
        u.value = 0.5 * u.value + x
        return u.value.sum()

    return f


@pytest.mark.parametrize("key", ["state", "kind"])
@pytest.mark.parametrize("axis", [0, -1, np.int64(1)])
def test_a_mapped_state_carries_the_batch_on_its_axis_in_and_out(axis: int, key: str, wrap: Any) -> None:
    start = jnp.arange(6.0).reshape((3, 2) if axis in (0, -2) else (2, 3))
    u = Membrane(start, name="u")
    hidden.set(u)  # where no search could find it
    f = wrap(transform.vmap(lambda x: leaky(hidden.get())(x), state_axes={u if key == "state" else Membrane: axis}))

    def twin(u: Any, x: Any) -> Any:
        u = 0.5 * u + x
        return u.sum(), u

    value = start
    for _ in range(3):
        expected, value = jax.vmap(twin, (int(axis), 0), (0, int(axis)))(value, XS)
        assert jnp.allclose(f(XS), expected)
        assert jnp.array_equal(u.value, value)
        assert u.value.shape == start.shape


def test_the_first_entry_that_fits_says_the_axis() -> None:
    a, b = Membrane(jnp.zeros((2, 3)), name="a"), Membrane(jnp.zeros((3, 2)), name="b")

    def f(x: Any) -> Any:
        a.value, b.value = a.value + x, b.value + x
        return x

    transform.vmap(f, state_axes={a: 1, Membrane: 0})(XS)
    assert (a.value.shape, b.value.shape) == ((2, 3), (3, 2))
    assert a.value[0].tolist() == b.value[:, 0].tolist() == [0.0, 1.0, 2.0]


def test_what_all_lanes_agree_on_may_be_written() -> None:
    total = State(jnp.float32(0), name="total")

    def f(x: Any) -> Any:
        total.value = total.value + jax.lax.psum(x, "lanes")
        return x

    transform.vmap(f, axis_name="lanes")(XS)
    assert total.value == 3.0
    assert total.value.shape == ()


@pytest.mark.parametrize("value", [lambda x: x, lambda x: {"a": 1.0, "b": x}, lambda x: jnp.ones(2) * x])
def test_a_value_per_lane_is_refused_and_every_state_kept(value: Any) -> None:
    u, n = State(jnp.float32(5), name="u"), State(jnp.int32(0), name="n")

    def f(x: Any) -> Any:
        n.value = n.value + 1
        u.value = value(x)
        return x

    for g in (transform.vmap(f), transform.jit(transform.vmap(f)), transform.vmap(transform.jit(f))):
        with pytest.raises(st.StateAxisError, match=r"State 'u' \(created at test_vmap.py:\d+\)"):
            g(XS)
        assert (u.value, n.value) == (5.0, 0)


def test_a_mapped_state_may_be_the_only_mapped_thing() -> None:
    u = State(jnp.arange(3.0), name="u")
    f = transform.vmap(lambda x: u.value * x, in_axes=None, state_axes={u: 0})
    assert f(2.0).tolist() == [0.0, 2.0, 4.0]
    assert transform.vmap(lambda: u.value + 1.0, state_axes={u: 0})().tolist() == [1.0, 2.0, 3.0]


def test_new_states_come_out_batched_on_the_first_axis() -> None:
    made = transform.vmap(lambda x: State({"a": x, "b": jnp.ones(2) * x}, name="made"), out_axes=0)(XS)
    assert made.value["a"].tolist() == [0.0, 1.0, 2.0]
    assert made.value["b"].shape == (3, 2)

    @transform.jit
    def init(keys: Any) -> Any:
        return transform.vmap(lambda key: {"w": Param(jax.random.normal(key, (2,)))})(keys)

    model = init(jax.random.split(jax.random.key(0), 3))
    assert model["w"].value.shape == (3, 2)
    assert transform.vmap(lambda x: model["w"].value @ x, in_axes=None, state_axes={Param: 0})(jnp.ones(2)).shape == (
        3,
    )


def test_gradients_flow_through_mapped_and_shared_states() -> None:
    u, w = State(jnp.array([1.0, 2.0, 3.0]), name="u"), Param(jnp.float32(2), name="w")

    def loss(x: Any) -> Any:
        def lane(x: Any) -> Any:
            u.value = u.value * w.value
            return u.value * x

        return transform.vmap(lane, state_axes={u: 0})(x).sum()

    gu, gw = transform.grad(loss, states=(u, w))(XS)
    assert (gu.tolist(), float(gw)) == ([0.0, 2.0, 4.0], 8.0)
    per_lane = transform.vmap(transform.grad(lambda x: w.value * x**2))(XS)
    assert per_lane.tolist() == [0.0, 4.0, 8.0]
    per_sample = transform.vmap(transform.grad(lambda x: w.value * x**2, states=w))(XS)
    assert per_sample.tolist() == [0.0, 1.0, 4.0]


def test_vmap_inside_a_loop_carries_the_batch() -> None:
    u, rng = State(jnp.zeros(3), name="u"), RandomState(0, name="rng")

    def lane(x: Any) -> Any:
        u.value = u.value * 0.5 + x
        return jax.random.uniform(rng.split())

    lanes = transform.vmap(lane, state_axes={u: 0})
    draws = transform.for_loop(lambda t: lanes(XS), jnp.arange(4))
    assert len(set(np.ravel(draws).tolist())) == 12
    assert u.value.tolist() == [0.0, 1.875, 3.75]


INNER = {name: ONCE[name] for name in ("jit", "checkpoint", "named_call", "scan", "cond", "jit of checkpoint")}
INNER["grad"] = lambda f: transform.grad(lambda x: f(x).sum())
INNER["vmap"] = lambda f: lambda x: transform.vmap(f, in_axes=None, axis_size=2)(x)


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("inner", INNER)
def test_a_mapped_state_goes_through_transforms_inside_the_lanes(inner: str, is_compiled: bool) -> None:
    u, w = Membrane(jnp.array([1.0, 2.0, 3.0]), name="u"), State(jnp.float32(2), name="w")
    alone = [State(value, name="alone") for value in u.value]

    def make(u: State) -> Any:
        def f(x: Any) -> Any:
            u.value = u.value * w.value + 1.0 if inner != "vmap" else u.value + 1.0
            return u.value * x * x

        return f

    if inner == "vmap":  # the lanes of the inner one share what the outer one maps
        make = lambda u: lambda x: (u.value + w.value) * x * x
    transformed = INNER[inner](make(u))
    g = transform.vmap(transformed, state_axes={Membrane: 0})
    g = transform.jit(g) if is_compiled else g
    for _ in range(2):
        expected = [INNER[inner](make(state))(x) for state, x in zip(alone, XS, strict=True)]
        assert jnp.allclose(g(XS), jnp.stack(expected))
        assert u.value.tolist() == [float(state.value) for state in alone]


def test_a_static_state_is_of_no_mapped_kind() -> None:
    mode, u = State("double", static=True, name="mode"), State(jnp.ones(2), name="u")

    def f(x: Any) -> Any:
        u.value = u.value + x
        return u.value * 2 if mode.value == "double" else u.value

    assert transform.vmap(f, state_axes={State: 0})(jnp.arange(2.0)).tolist() == [2.0, 4.0]
    assert u.value.tolist() == [1.0, 2.0] and mode.value == "double"


def test_a_state_without_the_axis_is_no_matter_until_it_is_read() -> None:
    u, scale, long = State(jnp.ones(3), name="u"), State(2.0, name="scale"), State(jnp.ones(4), name="long")
    model = {"u": u, "scale": scale, "long": long}

    def f(x: Any, used: Any) -> Any:
        return model["u"].value * x * (model[used].value if used else 1.0)

    run = lambda used: transform.vmap(lambda x: f(x, used), state_axes={State: 0})(XS)
    assert run(None).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(st.StateAxisError, match=r"State 'scale' .* over a batch of 3, but its value is float32\[\]"):
        run("scale")
    with pytest.raises(st.StateAxisError, match=r"State 'long' .* over a batch of 3, but its value is float32\[4\]"):
        run("long")
    assert transform.vmap(lambda x: f(x, "scale"), state_axes={State: 0, scale: None})(XS).tolist() == [0.0, 2.0, 4.0]


def test_a_mapped_state_that_is_only_written_takes_on_the_axis() -> None:
    u = State(0.0, name="u")

    @transform.vmap(state_axes={u: 0})
    def f(x: Any) -> None:
        u.value = 2 * x

    f(XS)
    assert u.value.tolist() == [0.0, 2.0, 4.0]
    f(XS + 1)
    assert u.value.tolist() == [2.0, 4.0, 6.0]


other = State(jnp.ones(5), name="other")


def test_a_global_with_the_name_of_an_attribute_is_another() -> None:
    holder = type("Holder", (), {})()
    holder.other = State(jnp.ones(3), name="u")

    def f(x: Any) -> Any:
        holder.other.value = holder.other.value + x

    transform.vmap(f, in_axes=None, state_axes={State: 0})(1.0)
    assert holder.other.value.tolist() == [2.0] * 3 and other.value.tolist() == [1.0] * 5


@pytest.mark.parametrize("axes", [(0, 0, 0), {"a": 0}, (0, {"b": 0}), [0, 0], (0, 7)])
def test_out_axes_that_do_not_fit_are_named_as_jax_names_them(axes: Any) -> None:
    count = State(jnp.float32(0))

    def f(x: Any) -> Any:
        count.value = count.value + 1
        return x, {"a": x}

    with pytest.raises(ValueError) as theirs:
        jax.vmap(lambda x: (x, {"a": x}), out_axes=axes)(XS)
    with pytest.raises(ValueError) as ours:
        transform.vmap(f, out_axes=axes)(XS)
    assert str(ours.value) == str(theirs.value)
    assert float(count.value) == 0


@pytest.mark.parametrize("in_axes", [0, (0,)])
def test_an_object_without_arrays_to_map_over_is_an_error_that_names_state_axes(in_axes: Any) -> None:
    with pytest.raises(ValueError) as error:
        transform.vmap(lambda s: s.value * 2, in_axes=in_axes)(State(jnp.arange(3.0)))
    assert "state_axes={st.State: 0}" in "".join(error.value.__notes__)


@pytest.mark.parametrize("key", ["state", "kind", "predicate"])
def test_a_mapped_state_costs_what_a_mapped_argument_does(key: str) -> None:
    w, n = Param(jnp.ones((3, 4)), name="w"), State(jnp.zeros((4, 3)), name="n")

    def f(x: Any) -> Any:
        n.value = n.value + w.value * x
        return jnp.sin(n.value).sum()

    axes = {
        "state": {w: 0, n: 1},
        "kind": {Param: 0, State: 1},
        "predicate": {lambda s: s.name == "w": 0, lambda s: True: 1},
    }[key]

    def twin(w: Any, n: Any, x: Any) -> Any:
        n = n + w * x
        return jnp.sin(n).sum(), n

    ours = transform.functionalize(transform.vmap(f, state_axes=axes)).trace(XS).jaxpr
    plain = jax.make_jaxpr(jax.vmap(twin, (0, 1, 0), (0, 1)))(w.value, n.value, XS)
    names = lambda jaxpr: sorted(eqn.primitive.name for eqn in jaxpr.eqns)
    assert names(ours) == names(plain)


def test_a_kind_tells_the_number_of_lanes_where_no_argument_does() -> None:
    w, other = Param(jnp.arange(3.0)), State(jnp.ones(7))
    f = transform.vmap(lambda y: w.value * y + 0.0 * other.value[0], in_axes=None, state_axes={Param: 0})
    assert f(2.0).tolist() == [0.0, 2.0, 4.0]
    with pytest.raises(ValueError, match="in_axes"):
        transform.vmap(lambda y: y, in_axes=None, state_axes={Param: 0})(2.0)


@jax.custom_jvp
def by_jvp(x: Any) -> Any:
    return 2 * x


@by_jvp.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return by_jvp(primals[0]), 2 * tangents[0]


@jax.custom_vjp
def by_vjp(x: Any) -> Any:
    return 2 * x


by_vjp.defvjp(lambda x: (2 * x, None), lambda _, ct: (2 * ct,))
MESH = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
WHOLE = jax.sharding.PartitionSpec()
RULES = {
    "custom_jvp": by_jvp,
    "custom_vjp": by_vjp,
    "jax.shard_map": jax.shard_map(lambda x: 2 * x, mesh=MESH, in_specs=WHOLE, out_specs=WHOLE),
    "custom_jvp in jit": jax.jit(by_jvp),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("around", ["plain", "jit", "grad", "inner grad"])
def test_a_value_that_all_lanes_share_may_go_through_a_rule(rule: str, around: str) -> None:
    u = State(jnp.float32(1), name="u")

    def f(x: Any) -> Any:
        u.value = RULES[rule](u.value)
        return x

    g = {
        "plain": transform.vmap(f),
        "jit": transform.jit(transform.vmap(f)),
        "grad": transform.grad(lambda x: transform.vmap(f)(x).sum()),
        "inner grad": transform.vmap(transform.grad(f)),
    }[around]
    g(XS)
    assert u.value.shape == () and u.value == 2.0


@pytest.mark.parametrize(
    "axes", [0, 1, True, "u", (0,), [0], {State: True}, {State: 1.5}, {State: "0"}, {State: (0,)}, ()]
)
def test_axes_of_states_that_are_no_mapping_to_axes_are_a_type_error(axes: Any) -> None:
    with pytest.raises(TypeError, match="`state_axes`"):
        transform.vmap(lambda x: x, state_axes=axes)
