"""`custom_vjp`, `custom_jvp` and `named_call` run the function where JAX does, with the states as they are then."""

from __future__ import annotations

import collections
import copy
import functools
import re
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import Param, State, transform

X = jnp.float32(2.0)
WAYS: dict[str, Callable[[Any], Any]] = {
    "grad": transform.grad,
    "jit of grad": lambda f: transform.jit(transform.grad(f)),
    "grad of jit": lambda f: transform.grad(transform.jit(f)),
    "grad of checkpoint": lambda f: transform.grad(transform.checkpoint(f)),
    "grad in lanes": lambda f: lambda x: transform.vmap(transform.grad(f))(x[None])[0],
    "grad of lanes": lambda f: lambda x: transform.grad(lambda x: transform.vmap(f)(x[None])[0])(x),
    "grad of scan": lambda f: transform.grad(lambda x: transform.scan(lambda c, _: (f(c), None), x, length=1)[0]),
    "grad of cond": lambda f: transform.grad(lambda x: transform.cond(x > 0, f, lambda x: x, x)),
    "vjp": lambda f: lambda x: transform.vjp(f, x)[1](jnp.float32(1))[0],
    "jacrev": transform.jacrev,
}
LATE = ("grad of jit", "grad of checkpoint", "grad of scan", "grad of cond")  # rules are called when the call is over
JITTED: dict[str, Callable[[Any], Any]] = {
    f"jit of {way}": lambda f, way=way: transform.jit(WAYS[way](f)) for way in LATE
}


@pytest.fixture
def w() -> State:
    return Param(jnp.float32(3), name="w")


@pytest.fixture
def n() -> State:
    return State(jnp.int32(0), name="n")


def counted(n: State, x: Any) -> Any:
    n.value = n.value + 1
    return x


def by_vjp(w: State, n: State) -> Any:
    f = transform.custom_vjp(lambda x: counted(n, w.value * x))
    f.defvjp(lambda x: (counted(n, w.value * x), w.value), lambda w, ct: (10 * ct * w,))
    return f


def by_jvp(w: State, n: State) -> Any:
    f = transform.custom_jvp(lambda x: counted(n, w.value * x))
    f.defjvp(lambda primals, tangents: (counted(n, w.value * primals[0]), 10 * w.value * tangents[0]))
    return f


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [by_vjp, by_jvp])
def test_a_rule_reads_and_writes_states_at_every_call(make: Any, way: str, w: State, n: State) -> None:
    f = WAYS[way](make(w, n))
    for i in range(1, 4):
        w.value = jnp.float32(i)
        assert f(X) == 10.0 * i
        assert n.value == i and n.value.shape == ()
    with jax.checking_leaks():
        assert WAYS[way](make(w, n))(X) == 30.0


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_second_derivatives_are_those_of_states_passed_as_arguments(compiled: bool, w: State, n: State) -> None:
    f = by_vjp(w, n)
    twin = jax.custom_vjp(lambda w, x: w * x)
    twin.defvjp(lambda w, x: (w * x, w), lambda w, ct: (0.0, 10 * ct * w))
    wrap = transform.jit if compiled else lambda f: f
    ones = jnp.ones(3)
    lanes = lambda x: transform.vmap(f)(x).sum()
    assert wrap(transform.grad(lambda: transform.grad(f)(X), states=w))() == 10.0
    assert jax.grad(lambda w: jax.grad(twin, 1)(w, X))(w.value) == 10.0
    assert wrap(transform.grad(lambda: transform.vmap(transform.grad(f))(ones).sum(), states=w))() == 30.0
    assert wrap(transform.grad(lambda: transform.grad(lanes)(ones).sum(), states=w))() == 30.0
    assert wrap(transform.hessian(f))(X) == 0.0


RAW_WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda t, f: t.grad(f),
    "jit of grad": lambda t, f: t.jit(t.grad(f)),
    "jit of grad of jit": lambda t, f: t.jit(t.grad(t.jit(f))),
    "jit of grad in lanes": lambda t, f: t.jit(lambda x: t.vmap(t.grad(f))(x[None])[0]),
    "jit of grad of lanes": lambda t, f: t.jit(t.grad(lambda x: t.vmap(f)(x[None])[0])),
    "jit of grad of checkpoint": lambda t, f: t.jit(t.grad(t.checkpoint(f))),
    "jit of grad of what is not moved": lambda t, f: t.jit(t.grad(lambda x: f(jnp.sin(1.0)) * x)),
    "jit of hessian": lambda t, f: t.jit(t.hessian(f)),
    "jit of vjp": lambda t, f: t.jit(lambda x: t.vjp(f, x)[1](x)),
}


@pytest.mark.parametrize("way", RAW_WAYS)
@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_a_function_and_its_rule_run_as_often_as_in_jax(kind: str, way: str, w: State) -> None:
    def runs_of(library: Any, w: Any) -> tuple[collections.Counter[str], Any]:
        runs = collections.Counter[str]()

        def says(name: str, out: Any) -> Any:
            runs[name] += 1
            return out

        f = getattr(library, kind)(lambda x: says("f", w.value * x))
        if kind == "custom_vjp":
            f.defvjp(lambda x: says("forward", (w.value * x, x)), lambda x, ct: says("backward", (10 * ct * x,)))
        else:
            f.defjvp(lambda primals, dots: says("rule", (w.value * primals[0], 10 * primals[0] * dots[0])))
        out = RAW_WAYS[way](library, f)(X)
        return runs, out

    runs, out = runs_of(transform, w)
    jaxs, expected = runs_of(jax, types.SimpleNamespace(value=w.value))
    if way == "jit of grad of what is not moved":  # the function is staged, and its rules with it
        jaxs |= runs
    assert (runs, out) == (jaxs, expected)


NONDIFF = [(1,), (-1,), (5,), (0, 1), (-2,), (1, -1), ()]


@pytest.mark.parametrize("argnums", NONDIFF)
@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_arguments_that_are_not_differentiated_are_those_that_jax_takes(kind: str, argnums: tuple[int, ...]) -> None:
    def outcome(library: Any, grad: Any, jit: Any) -> list[Any]:
        f = getattr(library, kind)(lambda x, y: x * y, nondiff_argnums=argnums)
        if kind == "custom_vjp":
            f.defvjp(lambda x, y: (x * y, (x, y)), lambda *args: (args[-1] * 10,) * (2 - len(argnums)))
        else:
            f.defjvp(lambda *args: (args[-2][0] * 3.0, args[-1][0] * 10.0))
        found: list[Any] = []
        for call in (f, grad(f), jit(f), jit(grad(lambda x: f(x, 3.0))), grad(jit(lambda x: f(x, 3.0)))):
            # Of two mistakes at once, JAX speaks of the one or the other according to the release.
            for args in ((X, 3.0), (X,)) if min(argnums, default=0) >= 0 else ((X, 3.0),):
                try:
                    found.append(float(call(*args)))
                except Exception as error:
                    found.append(next(c for c in type(error).__mro__ if c.__module__ in ("builtins", "jax.errors")))
        return found

    assert outcome(transform, transform.grad, transform.jit) == outcome(jax, jax.grad, jax.jit)


REVERSE_RULES_THAT_ARE_WRONG: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "too few cotangents": (lambda x, y: (x * y, None), lambda _, ct: (ct,)),
    "too many cotangents": (lambda x, y: (x * y, None), lambda _, ct: (ct, ct, ct)),
    "no tuple": (lambda x, y: (x * y, None), lambda _, ct: ct),
    "a cotangent of another shape": (lambda x, y: (x * y, None), lambda _, ct: (jnp.ones(3), ct)),
    "a cotangent of another structure": (lambda x, y: (x * y, None), lambda _, ct: ({"a": ct}, ct)),
    "no residuals": (lambda x, y: x * y, lambda _, ct: (ct, ct)),
    "three values": (lambda x, y: (x, y, None), lambda _, ct: (ct, ct)),
    "an argument less": (lambda x: (x, None), lambda _, ct: (ct, ct)),
    "no residuals taken": (lambda x, y: (x * y, None), lambda ct: (ct, ct)),
}
FORWARD_RULES_THAT_ARE_WRONG: dict[str, Callable[..., Any]] = {
    "no pair": lambda p, t: p[0],
    "three": lambda p, t: (p[0], t[0], t[1]),
    "structure": lambda p, t: (p[0], {"a": t[0]}),
    "shape": lambda p, t: (p[0], jnp.ones(3)),
    "dtype": lambda p, t: (p[0], jnp.int32(1)),
    "arguments": lambda p: p,
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("rule", REVERSE_RULES_THAT_ARE_WRONG | FORWARD_RULES_THAT_ARE_WRONG)
def test_a_wrong_rule_is_explained_as_by_jax(rule: str, compiled: bool) -> None:
    def message(library: Any) -> tuple[type, str]:
        if rule in REVERSE_RULES_THAT_ARE_WRONG:
            f, n_words = library.custom_vjp(lambda x, y: x * y), 8
            f.defvjp(*REVERSE_RULES_THAT_ARE_WRONG[rule])
        else:
            f, n_words = library.custom_jvp(lambda x, y: x * y), 5
            f.defjvp(FORWARD_RULES_THAT_ARE_WRONG[rule])
        with pytest.raises((TypeError, ValueError)) as info:
            (library.jit(library.grad(f)) if compiled else library.grad(f))(X, X)
        return info.type, " ".join(re.sub(r"0x\w+", "", str(info.value)).split()[:n_words])

    assert message(transform) == message(jax)


def test_a_backward_rule_sees_what_the_forward_rule_saw(w: State) -> None:
    f = transform.custom_vjp(lambda x: w.value * x)
    f.defvjp(lambda x: (w.value * x, None), lambda _, ct: (100 * w.value * ct,))
    _, pull = transform.vjp(f, X)
    w.value = jnp.float32(7)
    assert pull(jnp.float32(1)) == (300.0,)


@pytest.mark.parametrize("way", WAYS)
def test_a_backward_rule_that_reads_what_the_call_wrote_is_refused_by_name(way: str, w: State, n: State) -> None:
    f = transform.custom_vjp(lambda x: counted(n, x))
    f.defvjp(lambda x: (counted(n, x), None), lambda _, ct: (n.value * ct,))
    said = r"backward rule reads State 'n' .*\n.*[Pp]ass the value in the residuals"
    with pytest.raises(st.StateTraceError, match=said):
        WAYS[way](f)(X)
    assert n.value == (way == "vjp")  # there the forward pass is a call of its own


def forward_reads(w: State) -> Any:
    f = transform.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, w.value), lambda w, ct: (10 * w * ct,))
    return f


def backward_reads(w: State) -> Any:
    f = transform.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (f(x), None), lambda _, ct: (10 * w.value * ct,))  # the forward rule calls the function
    return f


def compiled_backward_reads(w: State) -> Any:
    f = transform.custom_vjp(lambda x: 10 * w.value * x)
    f.defvjp(lambda x: (10 * w.value * x, None), lambda _, ct: (jax.jit(lambda ct: 10 * w.value * ct)(ct),))
    return f


def jvp_reads(w: State) -> Any:
    f = transform.custom_jvp(lambda x: x)
    f.defjvp(lambda primals, tangents: (primals[0], 10 * w.value * tangents[0]))
    return f


@pytest.mark.parametrize(
    ("way", "static"),
    [(way, False) for way in WAYS | JITTED] + [(way, True) for way in ("grad", "jit of grad", "grad of scan")],
)
@pytest.mark.parametrize("make", [forward_reads, backward_reads, compiled_backward_reads, jvp_reads])
def test_a_rule_may_read_what_its_function_does_not(way: str, make: Any, static: bool) -> None:
    w = State(1.0, static=static, name="w")
    f = make(w)
    g = (WAYS | JITTED)[way](lambda x: f(x))
    for i in (2.0, 3.0, 4.0):
        w.value = i
        assert g(X) == 10 * i


def test_rules_of_rules_may_read_states_for_two_derivatives_and_are_refused_by_name_for_the_third(w: State) -> None:
    inner, f, g = backward_reads(w), transform.custom_vjp(lambda x: x), transform.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, x), lambda x, ct: (inner(x) * ct,))
    g.defvjp(lambda x: (x, x), lambda x, ct: (f(x) * ct,))
    assert transform.grad(transform.grad(transform.jit(f)))(X) == 30.0
    second = transform.grad(transform.grad(transform.jit(g)))
    assert second(X) == 2.0
    with pytest.raises(st.StateTraceError, match="The derivative rule reads Param 'w'"):
        transform.grad(second)(X)


def test_a_function_whose_rule_calls_it_has_a_second_derivative(w: State) -> None:
    f = transform.custom_vjp(lambda x: x**2)
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (w.value * f(x) * ct,))
    for i in (2.0, 3.0):
        w.value = jnp.float32(i)
        assert transform.grad(transform.grad(transform.jit(f)))(X) == i * i * X**2


def test_a_function_that_was_traced_within_a_rule_is_traced_again_on_its_own(w: State) -> None:
    f = backward_reads(w)
    g = first = transform.jit(lambda x, f=f: f(x))
    for _ in range(2):  # within rules of rules, its own are not looked at
        f = transform.custom_vjp(lambda x: x)
        f.defvjp(lambda x, g=g: (g(x), None), lambda _, ct: (ct,))
        g = transform.jit(lambda x, f=f: f(x))
    assert g(X) == X
    assert transform.grad(first)(X) == 30.0


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
@pytest.mark.parametrize("way", ["grad", "jit of grad", "grad in lanes", *LATE, *JITTED])
def test_a_state_as_an_argument_is_the_one_that_the_rule_reads(way: str, kind: str, w: State) -> None:
    f = getattr(transform, kind)(lambda u, x: x)
    if kind == "custom_vjp":
        f.defvjp(lambda u, x: (x, None), lambda _, ct: (None, ct * w.value))
    else:
        f.defjvp(lambda primals, tangents: (primals[1], tangents[1] * primals[0].value))
    assert (WAYS | JITTED)[way](lambda x: f(w, x))(X) == 3.0


def test_a_rule_reads_the_states_of_the_call_when_they_were_replaced() -> None:
    layer = types.SimpleNamespace()
    f = transform.custom_vjp(lambda x: layer.w.value * x)
    f.defvjp(lambda x: (layer.w.value * x, x), lambda x, ct: (ct * x * layer.w.value * layer.v.value,))
    loop = lambda x: transform.scan(lambda c, _: (f(c), None), x, length=1)[0]
    for make in (lambda: transform.grad(loop), lambda: transform.jit(transform.grad(loop))):
        for w, v in ((2.0, 3.0), (5.0, 7.0)):
            layer.w, layer.v = State(w), State(v)
            assert make()(X) == 2 * w * v


class Rules:
    """A class whose rules are methods, as its functions are; indices do not count the instance."""

    def __init__(self, w: float) -> None:
        self.w, self.k = State(jnp.float32(w), name="w"), w

    def _f(self, n: int, x: Any) -> Any:
        return self.w.value * x * n

    def forward(self, n: int, x: Any) -> Any:
        return self._f(n, x), x

    def backward(self, n: int, x: Any, ct: Any) -> Any:
        return (ct * x * self.w.value * self.k * n,)

    def rule(self, n: int, primals: Any, tangents: Any) -> Any:
        return self._f(n, *primals), tangents[0] * primals[0] * self.w.value * self.k * n

    named = transform.custom_vjp(nondiff_argnames=("n",))(_f)
    named.defvjp(forward, backward)
    numbered = transform.custom_vjp(_f, nondiff_argnums=(0,))
    numbered.defvjp(forward, backward)
    pushed = transform.custom_jvp(_f, nondiff_argnames="n")
    pushed.defjvp(rule)


@pytest.mark.parametrize("name", ["named", "numbered", "pushed"])
@pytest.mark.parametrize("way", ["grad", "grad of jit", "grad in lanes"])
def test_every_rule_of_a_method_may_take_the_instance(way: str, name: str) -> None:
    for w in (2.0, 3.0):
        rules = Rules(w)
        for call in (getattr(rules, name), functools.partial(getattr(Rules, name), rules)):
            assert call(3, X) == 3 * w * X
            assert WAYS[way](lambda x: call(3, x))(X) == 3 * X * w * w  # noqa: B023 - called at once


def test_symbolic_zeros_say_which_arguments_move(w: State) -> None:
    f = transform.custom_vjp(lambda x, y: x * y * w.value)
    f.defvjp(
        lambda x, y: (x.value * y.value * w.value, (x.value, y.perturbed)),
        lambda res, ct: (ct, ct * res[0] if res[1] else None),
        symbolic_zeros=True,
    )
    for wrap in (lambda f: f, transform.jit):
        assert wrap(transform.grad(f))(X, X) == 1.0
        assert wrap(transform.grad(f, argnums=(0, 1)))(X, X) == (1.0, 2.0)


def test_symbolic_zeros_come_with_the_leaves_of_a_state() -> None:
    w = State({"a": X, "b": X}, name="w")
    f = transform.custom_vjp(lambda x: x * w.value["a"])
    f.defvjp(lambda x: (x.value * w.value["a"], w.value["b"]), lambda b, ct: (10 * ct * b,), symbolic_zeros=True)
    for wrap in (lambda f: f, transform.jit):
        assert wrap(transform.grad(wrap(f)))(X) == 20.0


@pytest.mark.parametrize("way", ["grad", "jit of grad", "grad of jit"])
def test_the_forward_rule_may_be_optimized_away(way: str, w: State) -> None:
    f = transform.custom_vjp(lambda x: x * w.value)
    f.defvjp(lambda x: (x * w.value, w.value), lambda w, ct: (10 * ct * w,), optimize_remat=True)
    assert f(X) == 6.0
    assert WAYS[way](f)(X) == 30.0


def test_a_named_call_runs_as_it_is(w: State, n: State) -> None:
    runs = []

    @transform.named_call(name="scale")
    def f(x: Any, mode: str, box: list[Any]) -> Any:
        runs.append(1)
        box.append(mode)
        counted(n, x)
        return (w.value * x if x > 0 else x), mode

    box: list[Any] = []
    assert f(X, "fast", box) == (6.0, "fast")
    assert f(-X, "slow", box) == (-2.0, "slow")
    assert (box, len(runs), int(n.value)) == (["fast", "slow"], 2, 2)
    assert "scale" in str(
        jax.make_jaxpr(lambda x: transform.named_call(jnp.sin, name="scale")(x))(X).jaxpr.pretty_print(name_stack=True)
    )
    with pytest.raises(ZeroDivisionError):
        transform.named_call(lambda: (counted(n, X), 1 / 0))()
    assert n.value == 2


def test_a_named_call_makes_states_and_takes_what_has_no_name() -> None:
    made = transform.named_call(functools.partial(lambda a, x: {"s": State(a * x)}, 2.0))(X)["s"]
    assert made.value == 4.0
    assert np.asarray(transform.named_call(lambda s: s.value)(made)) == 4.0


def test_static_and_class_methods_in_both_orders(w: State) -> None:
    class Scaled:
        k = 2.0

        @transform.custom_vjp
        @classmethod
        def pulled(cls, x: Any) -> Any:
            return w.value * x * cls.k

        @transform.custom_jvp
        @staticmethod
        def free(x: Any) -> Any:
            return w.value * x

        @classmethod
        @transform.custom_jvp
        def outside(cls, x: Any) -> Any:
            return w.value * x * cls.k

        free.defjvp(lambda primals, dots: (w.value * primals[0], 9 * dots[0]))
        pulled.defvjp(lambda cls, x: (w.value * x * cls.k, cls.k), lambda k, ct: (100 * k * ct,))

    Scaled.outside.defjvp(lambda primals, dots: (w.value * primals[0] * 2, 5 * dots[0]))
    for owner in (Scaled, Scaled(), type("Derived", (Scaled,), {})):
        for name, value, slope in [("pulled", 6, 200), ("free", 3, 9), ("outside", 6, 5)]:
            f = getattr(owner, name)
            assert f(1.0) == value * w.value / 3
            assert transform.grad(f)(1.0) == slope == transform.jit(transform.grad(f))(1.0)
    copied = copy.deepcopy(vars(Scaled)["pulled"])
    assert copied.__get__(None, Scaled)(1.0) == Scaled.pulled(1.0)
