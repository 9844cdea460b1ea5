"""`grad` and its relatives: with respect to arguments, to states, and to both."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import Param, State, transform

from .cases import assert_same


class Net:
    def __init__(self) -> None:
        self.w = Param(jnp.array([[1.0, 2.0], [3.0, 4.0]]), name="w")
        self.b = Param({"bias": jnp.array([0.5, -0.5])}, name="b")
        self.n = State(jnp.int32(0), name="n")

    def loss(self, x: Any, y: Any = 1.0) -> Any:
        self.n.value += 1
        return jnp.sum(jnp.tanh(x @ self.w.value + self.b.value["bias"]) * y)

    @transform.grad
    def slope(self, x: Any, y: Any = 1.0) -> Any:
        return self.loss(x, y)

    @transform.value_and_grad(argnums=1)
    def second_slope(self, x: Any, y: Any) -> Any:
        return self.loss(x, y)


def twin(w: Any, b: Any, x: Any, y: Any = 1.0) -> Any:
    return jnp.sum(jnp.tanh(x @ w + b["bias"]) * y)


X = jnp.array([0.3, -0.7])


@pytest.fixture(params=["plain", "checkpoint", "jit"])
def net_and_loss(request: pytest.FixtureRequest) -> tuple[Net, Any]:
    net = Net()
    return net, net.loss if request.param == "plain" else getattr(transform, request.param)(net.loss)


def test_states_only_gives_gradients_in_the_structure_of_states(net_and_loss: Any) -> None:
    net, loss = net_and_loss
    gw, gb = jax.grad(twin, argnums=(0, 1))(net.w.value, net.b.value, X)
    assert_same(transform.grad(loss, states=net.w)(X), gw)
    assert_same(transform.grad(loss, states=[net.b, net.w])(X), [gb, gw])
    assert_same(transform.grad(loss, states={"w": net.w})(X), {"w": gw})
    assert_same(transform.grad(loss, states=st.states(net, Param))(X), {"w": gw, "b": gb})
    value, gradients = transform.value_and_grad(loss, states=(net.w, (net.b,)))(X)
    assert_same((value, gradients), (twin(net.w.value, net.b.value, X), (gw, (gb,))))
    assert net.n.value == 5


@pytest.mark.parametrize("argnums", [0, 1, -1, (0,), (1, 0), (0, -1)])
def test_states_and_argnums_give_a_pair(argnums: Any, net_and_loss: Any) -> None:
    net, loss = net_and_loss
    y = jnp.array([1.0, 2.0])
    reference = jax.grad(twin, argnums=0)(net.w.value, net.b.value, X, y)
    arguments = jax.grad(lambda x, y: twin(net.w.value, net.b.value, x, y), argnums=argnums)(X, y)
    assert_same(transform.grad(loss, argnums=argnums, states=net.w)(X, y), (reference, arguments))
    assert_same(transform.grad(loss, argnums=argnums)(X, y), arguments)


def test_auxiliary_data_come_where_jax_puts_them(net_and_loss: Any) -> None:
    net, loss = net_and_loss

    def with_aux(x: Any) -> Any:
        return loss(x), {"n": net.n.value, "text": None}

    gradient, aux = transform.grad(with_aux, has_aux=True, states=net.w)(X)
    assert (aux["n"], aux["text"], gradient.shape) == (1, None, (2, 2))
    (value, aux), (gw, gx) = transform.value_and_grad(with_aux, 0, has_aux=True, states=net.w)(X)
    assert (aux["n"], value.shape, gw.shape, gx.shape) == (2, (), (2, 2), (2,))
    out, pull, aux = transform.vjp(with_aux, X, has_aux=True, states=net.w)
    assert (aux["n"], jax.tree.map(jnp.shape, pull(jnp.ones_like(out)))) == (3, ((2, 2), (2,)))
    out, tangent, aux = transform.jvp(with_aux, (X,), (X,), has_aux=True)
    assert (aux["n"], tangent.shape) == (4, ())
    assert net.n.value == 4


def test_a_state_is_differentiated_at_its_value_on_entry() -> None:
    s = State(jnp.float32(3), name="s")

    def f(x: Any) -> Any:
        first = s.value**2
        s.value = s.value * x
        return first + s.value

    for wrap in (lambda f: f, transform.checkpoint, transform.jit):
        s.value = jnp.float32(3)
        gs, gx = transform.grad(wrap(f), argnums=0, states=s)(2.0)
        assert (gs, gx, s.value) == (8.0, 3.0, 6.0)


def test_a_state_that_is_not_used_or_overwritten_first_has_gradient_zero() -> None:
    unused, overwritten = State(jnp.ones(2)), State(jnp.float32(4))

    def f(x: Any) -> Any:
        overwritten.value = x * 2.0
        return overwritten.value

    gu, go = transform.grad(f, states=(unused, overwritten))(1.0)
    assert gu.tolist() == [0.0, 0.0]
    assert go == 0.0
    assert overwritten.value == 2.0


def test_gradients_of_gradients_with_respect_to_states() -> None:
    a, b = State(jnp.float32(2), name="a"), State(jnp.float32(3), name="b")
    f = lambda: a.value**3 * b.value**2
    inner = transform.grad(f, states=a)
    assert transform.grad(inner, states=a)() == 6 * 2 * 9
    assert transform.grad(inner, states=b)() == 3 * 4 * 2 * 3
    assert transform.grad(lambda x: transform.grad(lambda: x * f(), states=a)(), argnums=0)(1.0) == 12 * 9
    hessian = transform.hessian(f, states=(a, b))()
    reference = jax.hessian(lambda v: v[0] ** 3 * v[1] ** 2)((a.value, b.value))
    assert_same(hessian, reference)


@pytest.mark.parametrize("name", ["jacfwd", "jacrev"])
def test_jacobians_with_respect_to_states(name: str) -> None:
    net = Net()
    f = lambda x: jnp.tanh(x @ net.w.value + net.b.value["bias"])
    pure = lambda w, b, x: jnp.tanh(x @ w + b["bias"])
    ours, theirs = getattr(transform, name), getattr(jax, name)
    reference = theirs(pure, argnums=(0, 1))(net.w.value, net.b.value, X)
    assert_same(ours(f, states=(net.w, net.b))(X), reference)
    assert_same(ours(f)(X), theirs(lambda x: pure(net.w.value, net.b.value, x))(X))
    gw, gx = ours(f, argnums=0, states=net.w)(X)
    assert_same((gw, gx), theirs(lambda w, x: pure(w, net.b.value, x), argnums=(0, 1))(net.w.value, X))


def test_vjp_jvp_and_linearize_with_respect_to_states() -> None:
    w = Param(jnp.array([1.0, 2.0]), name="w")
    f = lambda x: jnp.sin(w.value) * x
    pure = lambda w, x: jnp.sin(w) * x
    tangents = (jnp.array([1.0, -1.0]), jnp.float32(2))
    out, pull = transform.vjp(f, jnp.float32(3), states=w)
    reference, pure_pull = jax.vjp(pure, w.value, jnp.float32(3))
    assert_same((out, pull(out)), (reference, pure_pull(reference)))
    ours = transform.jvp(f, (jnp.float32(3),), tangents, states=w)
    assert_same(ours, jax.jvp(pure, (w.value, jnp.float32(3)), tangents))
    out, push = transform.linearize(f, jnp.float32(3), states=w)
    reference, pure_push = jax.linearize(pure, w.value, jnp.float32(3))
    assert_same((out, push(*tangents)), (reference, pure_push(*tangents)))
    out, pull = transform.vjp(f, jnp.float32(3))
    assert_same(pull(out), jax.vjp(lambda x: pure(w.value, x), jnp.float32(3))[1](out))
    out, pull = transform.vjp(lambda: f(jnp.float32(3)), states=w)  # a tuple, also of one
    assert_same(pull(out), pure_pull(out)[:1])


def test_what_vjp_and_linearize_return_does_not_write_again() -> None:
    n = State(jnp.float32(1), name="n")

    def f(x: Any) -> Any:
        n.value = n.value + 1.0
        return n.value * x**2

    out, pull = transform.vjp(f, 3.0)
    assert (out, n.value) == (18.0, 2.0)
    n.value = jnp.float32(100)
    assert (pull(1.0)[0], pull(2.0)[0], n.value) == (12.0, 24.0, 100.0)
    out, push = transform.linearize(f, 3.0)
    assert (push(1.0), push(2.0), n.value) == (606.0, 1212.0, 101.0)
    assert jax.jit(pull)(1.0)[0] == 12.0


def test_allow_int_and_holomorphic_are_passed_on() -> None:
    n, z = State(jnp.int32(3)), State(jnp.complex64(1 + 2j))
    assert transform.grad(lambda x: x * n.value, states=n, allow_int=True)(2.0).dtype == jax.dtypes.float0
    assert transform.grad(lambda: z.value**2, states=z, holomorphic=True)() == 2 * z.value


def test_a_state_that_is_passed_as_an_argument_is_lifted_but_not_differentiated() -> None:
    s = State(jnp.float32(3), name="s")

    def f(state: State, x: Any) -> Any:
        state.value = state.value + 1.0
        return state.value * x

    assert transform.grad(f, argnums=1)(s, 2.0) == 4.0
    assert transform.grad(f, argnums=1, states=s)(s, 2.0) == (2.0, 5.0)
    assert transform.value_and_grad(lambda model, x: f(model["s"], x), argnums=1)({"s": s}, 1.0) == (6.0, 6.0)
    with pytest.raises(TypeError, match="states="):
        transform.grad(f, argnums=0)(s, 2.0)
    assert s.value == 6.0


@pytest.mark.parametrize("around", [lambda f: f, transform.jit], ids=["eager", "jit"])
def test_the_derivative_has_none_where_an_argument_holds_an_object(around: Any) -> None:
    model = {"w": jnp.ones(2), "gain": State(3.0)}
    scaled = lambda model: model["w"] * model["gain"].value
    summed = lambda model: jnp.sum(scaled(model))
    gradients = [
        around(transform.grad(summed))(model),
        around(transform.value_and_grad(summed))(model)[1],
        around(lambda model: transform.vjp(summed, model)[1](1.0)[0])(model),
        around(transform.grad(lambda x, model: x * summed(model), argnums=(0, 1)))(1.0, model)[1],
    ]
    for gradient in gradients:
        assert gradient["gain"] is None
        np.testing.assert_array_equal(gradient["w"], [3.0, 3.0])
    np.testing.assert_array_equal(around(transform.jacrev(scaled))(model)["w"], 3 * np.eye(2))
    tangent = {"w": jnp.ones(2), "gain": None}
    assert around(lambda: transform.jvp(summed, (model,), (tangent,))[1])() == 6
    assert around(lambda: transform.linearize(summed, model)[1](tangent))() == 6


@pytest.mark.parametrize("around", [transform.jit, transform.checkpoint, transform.vmap])
@pytest.mark.parametrize("states", [False, True])
def test_what_vjp_and_linearize_return_may_leave_a_transform_around(states: bool, around: Any) -> None:
    w, xs = State(2.0, name="w"), jnp.array([0.5, 0.7])
    f, by_hand = lambda x: w.value * jnp.sin(x), lambda w, x: w * jnp.sin(x)
    options = {"states": w} if states else {}
    ones = (jnp.ones(2),) * (2 if states else 1)
    each, primals = (jax.vmap if around is transform.vmap else lambda f: f), (jnp.full(2, 2.0), xs)
    if around is not transform.vmap:
        w.value = primals[0]
    _, pullback = around(lambda x: transform.vjp(f, x, **options))(xs)
    _, pushforward = around(lambda x: transform.linearize(f, x, **options))(xs)
    cts = jax.vjp(by_hand, *primals)[1](jnp.ones(2))
    tangent = jax.jvp(by_hand, primals, ones if states else (jnp.zeros(2), *ones))[1]
    assert_same(each(lambda pullback, ct: pullback(ct))(pullback, jnp.ones(2)), cts if states else cts[1:])
    assert_same(each(lambda pushforward, *dots: pushforward(*dots))(pushforward, *ones), tangent)


@pytest.mark.skipif("saveable_args" not in inspect.signature(jax.vjp).parameters, reason="this JAX has no such option")
def test_options_of_newer_releases_are_passed_on() -> None:
    w, x, y = State(jnp.float32(2.0), name="w"), jnp.float32(3.0), jnp.float32(5.0)
    f, pure = lambda x, y: w.value * x * y, lambda w, x, y: w * x * y
    _, by_hand = jax.vjp(pure, w.value, x, y, in_nzs=(True, False, True))
    _, pullback = transform.vjp(f, x, y, in_nzs=(True, False, True), states=w)
    assert_same(pullback(1.0), by_hand(jnp.float32(1.0)))
    _, pullback = transform.vjp(f, x, y, in_nzs=(False, True))
    assert_same(pullback(1.0), by_hand(jnp.float32(1.0))[1:])
    assert jax.tree.leaves(pullback.out_nzs) == [True]
    _, by_hand = jax.vjp(lambda x, y: 2.0 * x * y, x, y, saveable_args=(True, False))
    _, pullback = transform.vjp(f, x, y, saveable_args=(True, False))
    assert jax.tree.structure(pullback.args_res) == jax.tree.structure(by_hand.args_res)


@pytest.mark.skipif("in_nzs" not in inspect.signature(jax.linearize).parameters, reason="this JAX has no such option")
def test_linearize_may_be_told_what_does_not_move() -> None:
    w, x, y = State(jnp.float32(2.0), name="w"), jnp.float32(3.0), jnp.float32(5.0)
    _, pushforward = transform.linearize(lambda x, y: w.value * x * y, x, y, in_nzs=(True, False))
    assert float(pushforward(jnp.float32(1.0), jnp.float32(0.0))) == 10.0


def test_a_rule_for_each_argument() -> None:
    w, n = State(2.0, name="w"), State(0, name="n")

    @transform.custom_jvp
    def f(x: Any, y: Any) -> Any:
        n.value = n.value + 1
        return {"z": w.value * x * y, "n": jnp.int32(3)}

    f.defjvps(lambda dot, out, x, y: {"z": 10 * dot * out["z"], "n": 0}, None)
    loss = lambda x, y: f(x, y)["z"]
    assert_same(transform.grad(loss, argnums=(0, 1))(3.0, 5.0), (jnp.float32(300.0), jnp.float32(0.0)))
    assert int(n.value) == 1
    with pytest.raises(TypeError, match="nondiff_argnums"):
        transform.custom_jvp(f, nondiff_argnums=0).defjvps(None)


def test_rules_get_keywords_and_defaults_by_position_as_in_jax() -> None:
    w = State(2.0, name="w")

    def define(custom: Any, by_hand: bool) -> Any:
        def f(x: Any, y: Any = 3.0) -> Any:
            return (2.0 if by_hand else w.value) * x * y

        f = custom(f)
        f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda res, ct: (100 * ct * res[1], ct * res[0]))
        return f

    ours, jaxs = define(transform.custom_vjp, False), define(jax.custom_vjp, True)
    for call in (lambda x, f: f(x), lambda x, f: f(x, y=4.0), lambda x, f: f(y=x, x=1.0)):
        assert_same(transform.grad(call)(5.0, ours), jax.grad(functools.partial(call, f=jaxs))(5.0))
    only = transform.custom_vjp(lambda x, *, scale: x * scale)
    only.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
    with pytest.raises(TypeError, match=r"by position, but scale cannot be"):
        only(1.0, scale=2.0)


@pytest.mark.parametrize("value", ["text", jnp.arange(3), {"a": jnp.int32(3), "b": jnp.float32(2)}], ids=str)
@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacfwd", "jacrev", "hessian"])
def test_states_without_derivatives_are_refused_by_name(name: str, value: Any) -> None:
    s = State(value, static=isinstance(value, str), name="s")
    held = "static" if s.static else "holds .*int32"
    said = rf"^{name}: State 's' \(created at .*\) .*{held}.*derivatives need floating-point values"
    with pytest.raises(TypeError, match=said):
        getattr(transform, name)(lambda: 1.0, states=s)()
    if isinstance(value, dict):
        assert transform.grad(lambda: s.value["b"] * 1.0, states=s, allow_int=True)()["b"] == 1.0
