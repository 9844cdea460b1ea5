"""Reads of states inside raw JAX transforms, which cache what they trace by the identity of a function."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import Param, StaleReadWarning, State, transform


@pytest.fixture(autouse=True)
def other_tests_do_not_pay() -> Iterator[None]:
    yield
    jax.clear_caches()


def make() -> tuple[Param, Any]:
    """A state, and a function that reads it in the body of a raw scan."""
    w = Param(1.0, name="w")
    body = lambda c, _: (c + w.value, None)
    return w, lambda: jax.lax.scan(body, 0.0, length=2)[0]


TRANSFORMS = {
    "jit": lambda f, w: transform.jit(f)(),
    "checkpoint": lambda f, w: transform.checkpoint(f)(),
    "value_and_grad": lambda f, w: transform.value_and_grad(f, states=w)()[0],
    "jit of grad": lambda f, w: transform.jit(transform.value_and_grad(f, states=w))()[0],
    "in a loop": lambda f, w: transform.for_loop(lambda: f(), length=1)[0],
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("is_read_before", [False, True])
def test_a_read_in_a_raw_transform_is_fresh_under_ours(name: str, is_read_before: bool) -> None:
    w, f = make()
    if is_read_before:
        with pytest.warns(StaleReadWarning, match="Param 'w' .* is read inside a raw JAX transform"):
            f()
    for value in (3.0, 5.0, 7.0):
        w.value = value
        assert TRANSFORMS[name](f, w) == 2 * value


def test_the_first_read_in_a_raw_transform_starts_the_function_again_and_no_other_does() -> None:
    w, f = make()
    runs = []
    checkpointed = transform.checkpoint(lambda: runs.append(1) or f())
    for value in (2.0, 2.0, 5.0):
        w.value = value
        assert checkpointed() == 2 * value
    assert len(runs) == 2


def test_the_gradient_flows_through_a_read_in_a_raw_transform() -> None:
    w, f = make()
    assert [float(transform.grad(f, states=w)()) for _ in range(2)] == [2.0, 2.0]


RAW = {"jit": jax.jit, "scan": lambda f: functools.partial(scan_once, lambda c, _: (f(c), None))}
OURS = {
    "nothing": lambda w: lambda x: w.value * x,
    "checkpoint": lambda w: lambda x: transform.checkpoint(lambda y: w.value * y)(x),
    "grad": lambda w: lambda x: transform.grad(lambda y: w.value * y)(x),
    "grad with respect to it": lambda w: lambda x: x * transform.grad(lambda: w.value**2 / 2, states=w)(),
    "grad of raw jit": lambda w: lambda x: transform.grad(jax.jit(lambda y: w.value * y))(x),
    "vmap": lambda w: lambda x: transform.vmap(lambda y: w.value * y)(x[None])[0],
    "jvp": lambda w: lambda x: transform.jvp(lambda y: w.value * y, (x,), (x,))[1],
    "jit": lambda w: lambda x: transform.jit(lambda y: w.value * y)(x),
    "scan": lambda w: lambda x: transform.scan(lambda c, _: (w.value * c, None), x, length=1)[0],
}
ONE = jnp.float32(1)


def scan_once(body: Any, x: Any) -> Any:
    return jax.lax.scan(body, x, length=1)[0]


def anew(fun: Any) -> Any:
    """A function with code of its own, in which no read was seen."""
    return types.FunctionType(fun.__code__.replace(), fun.__globals__, closure=fun.__closure__)


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("raw", RAW)
def test_a_read_is_fresh_in_ours_within_a_raw_transform_within_ours(raw: str, ours: str) -> None:
    w = Param(3.0, name="w")
    g = RAW[raw](OURS[ours](w))
    f = transform.jit(anew(lambda x, y: g(x) + 0 * y.sum()))
    seen = [float(f(ONE, jnp.ones(n))) for n in (1, 2)]
    w.value = 5.0
    assert [*seen, *[float(f(ONE, jnp.ones(n))) for n in (2, 1)]] == [3.0, 3.0, 5.0, 5.0]


@pytest.mark.parametrize("ours", ["nothing", "grad", "vmap", "grad of raw jit", "jit"])
@pytest.mark.parametrize("raw", ["jit", "scan"])
def test_a_write_is_seen_by_ours_within_a_raw_transform(raw: str, ours: str) -> None:
    w = Param(3.0, name="w")
    g = RAW[raw](OURS[ours](w))

    def f(x: Any) -> Any:
        before = g(x)
        w.value = w.value + 1
        return before, g(x)

    assert transform.jit(anew(f))(ONE) == (3.0, 4.0)
    assert transform.vmap(anew(f))(ONE[None]) == (4.0, 5.0)
    assert w.value == 5.0


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("raw", RAW)
def test_ours_within_raw_jax_alone_warns_as_a_plain_read_does(raw: str, ours: str) -> None:
    w = Param(3.0, name="w")
    with pytest.warns(StaleReadWarning, match="Param 'w' .* is read inside a raw JAX transform") as seen:
        assert RAW[raw](OURS[ours](w))(ONE) == 3.0
    assert {warning.filename for warning in seen} == {__file__}


def test_a_compiled_function_within_raw_jax_warns_however_often_it_was_called_before() -> None:
    w = Param(3.0, name="w")
    f = transform.jit(lambda x: {"y": w.value * x})
    for _ in range(5):
        f(ONE)
    with pytest.warns(StaleReadWarning, match="Param 'w'"):
        jax.jit(f)(ONE)


@pytest.mark.parametrize("raw", [jax.jit, jax.grad])
@pytest.mark.filterwarnings("ignore::statetransform.StaleReadWarning")
def test_a_tracer_put_into_a_container_within_a_raw_transform_is_an_error_at_the_next_read(raw: Any) -> None:
    u, untouched = State({"a": ONE}, name="u"), State({"a": ONE})

    def f(x: Any) -> Any:
        u.value["a"] = x
        return x * untouched.value["a"]

    raw(f)(ONE)
    for read in (
        lambda: u.value,
        transform.jit(lambda: u.value["a"]),
        lambda: transform.grad(lambda x: u["a"] * x)(ONE),
    ):
        with pytest.raises(st.StateTraceError, match=r"'u'.*holds a tracer"):
            read()
    u.value = {"a": ONE}
    assert u.value == untouched.value == {"a": ONE}


def test_transforms_that_show_a_program_are_no_raw_ones() -> None:
    w, runs = Param(3.0, name="w"), []
    f = lambda x: (runs.append(1), w.value * x)[1]
    assert len(transform.make_jaxpr(f)(ONE).jaxpr.invars) == 2
    assert transform.eval_shape(f, ONE).shape == ()
    assert len(runs) == 2


def test_static_states_and_reads_that_jax_runs_at_once_do_not_warn() -> None:
    n, w = State(3, static=True), Param(2.0)
    assert jax.jit(transform.grad(lambda x: x * n.value))(ONE) == 3.0
    assert jax.vmap(transform.grad(lambda x: x * w.value))(ONE[None]) == 2.0


def test_under_raw_jax_alone_a_warning_says_so_once_for_each_place() -> None:
    w = Param(1.0, name="w")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            jax.jit(lambda x: w.value * x)(1.0)
        jax.grad(lambda x: w.value * x)(1.0)  # runs at once, and caches nothing
    assert [warning.category for warning in seen] == [StaleReadWarning]
    assert seen[0].filename == __file__


def test_programs_without_such_reads_are_not_traced_again() -> None:
    w, runs = Param(2.0), []
    h = jax.jit(lambda x: (runs.append(1), x * 2)[1])
    for n in range(1, 4):
        transform.jit(lambda x, n=n: h(x) * w.value * n)(1.0)
    assert len(runs) == 1


def test_a_program_that_is_shown_is_not_run_and_warns_of_nothing() -> None:
    w = State(jnp.float32(2.0), name="w")
    kept = transform.checkpoint(lambda x: w.value * x)
    assert ["prevent_cse" in eqn.params for eqn in jax.make_jaxpr(kept)(1.0).eqns] == [True]
    assert len(jax.make_jaxpr(transform.grad(kept))(1.0).eqns) > 0


def test_what_is_jitted_in_a_program_that_was_shown_is_not_stale_afterwards() -> None:
    w = Param(3.0, name="w")
    g = jax.jit(lambda x: w.value * x)
    jax.make_jaxpr(lambda x: g(x))(ONE)
    w.value = 5.0
    assert transform.grad(lambda x: g(x))(ONE) == 5.0
    assert transform.jit(lambda x: g(x))(ONE) == 5.0


def test_a_write_between_two_raw_calls_is_seen_after_a_read_under_raw_jax_alone() -> None:
    v, other = State(jnp.float32(1)), State(jnp.float32(1))
    raw = jax.jit(lambda x: x * other.value)
    with pytest.warns(StaleReadWarning):
        raw(1.0)

    def f(x: Any) -> Any:
        before = raw(x) + transform.grad(lambda y: y * v.value)(x)
        other.value = other.value * 2
        return before + raw(x)

    assert [float(transform.grad(f)(1.0)) for _ in range(2)] == [1 + 2, 2 + 4]


def test_a_program_that_is_shown_after_a_read_under_raw_jax_alone_has_the_state_as_input() -> None:
    s, o = State(1.0), State(1.0)
    raw = jax.jit(lambda x: x * s.value)
    with pytest.warns(StaleReadWarning):
        raw(1.0)
    transform.grad(lambda x: x * o.value)(1.0)
    s.value = 5.0
    assert len(transform.make_jaxpr(lambda x: raw(x))(1.0).jaxpr.invars) == 2


def test_a_callback_that_traces_leaves_the_run_around_it_as_it_was() -> None:
    s, o, other = State(1.0), State(2.0), State(0.0)
    raw, inner = jax.jit(lambda x: x * s.value), transform.jit(lambda: o.value * 2)
    with pytest.warns(StaleReadWarning):
        jax.jit(lambda x: x * other.value)(1.0)

    def host() -> None:
        inner.clear_cache()
        inner()

    def f(x: Any) -> Any:
        before = raw(2.0)
        jax.debug.callback(host)
        s.value = 10.0
        return x * (before + raw(2.0))

    with jax.default_device(jax.devices("cpu")[0]):
        assert float(transform.grad(f)(1.0)) == 22.0


def by_raw_jvp(w: State) -> Any:
    f = jax.custom_jvp(lambda x: x)
    f.defjvp(lambda primals, tangents: (primals[0], tangents[0] * w.value))
    return f


def by_raw_forward_rule(w: State) -> Any:
    f = jax.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, w.value), lambda w, ct: (w * ct,))
    return f


def by_custom_gradient(w: State) -> Any:
    return jax.custom_gradient(lambda x: (x, lambda ct, w=w.value: w * ct))


RULED: dict[str, Callable[[Any], Any]] = {
    "in a loop": lambda f: transform.grad(lambda x: scan_in_ours(f, x)),
    "in a branch": lambda f: transform.grad(lambda x: transform.cond(x > 0, f, lambda x: x, x)),
    "in a compiled function": lambda f: transform.grad(transform.jit(f)),
    "in a checkpoint": lambda f: transform.grad(transform.checkpoint(f)),
    "in a compiled gradient of a loop": lambda f: transform.jit(transform.grad(lambda x: scan_in_ours(f, x))),
}


def scan_in_ours(f: Any, x: Any) -> Any:
    return transform.scan(lambda c, _: (f(c), None), x, length=1)[0]


@pytest.mark.parametrize(("way", "static"), [*((way, False) for way in RULED), ("in a loop", True)])
@pytest.mark.parametrize("make", [by_raw_jvp, by_raw_forward_rule, by_custom_gradient])
def test_a_read_in_a_raw_derivative_rule_is_fresh_under_ours(make: Any, way: str, static: bool) -> None:
    w = State(2.0, static=static, name="w")
    f = make(w)
    g = RULED[way](lambda x: f(x))
    for value in (2.0, 3.0, 4.0):
        w.value = value
        assert g(ONE) == value
    eager = RULED["in a loop"](lambda x: f(x))  # finds nothing that another gradient has left
    w.value = 5.0
    assert (eager(ONE), g(ONE)) == (5.0, 5.0)


def test_a_gradient_through_a_raw_rule_without_such_a_read_is_traced_once() -> None:
    w, runs = Param(2.0), []
    body = lambda c, _: (runs.append(1) or jax.nn.relu(w.value * c), None)
    g = transform.grad(lambda x: transform.scan(body, x, length=2)[0])
    assert [g(ONE) for _ in range(3)] == [4.0] * 3
    assert len(runs) == 1
