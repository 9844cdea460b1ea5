"""`vmap` decides what a state is to it when the function first reads it, and does not look for states before."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import Param, State, transform

XS = jnp.arange(3.0)


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
