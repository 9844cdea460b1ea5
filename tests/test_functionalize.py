"""`functionalize` and `lift`: the way out to raw JAX transforms and other libraries."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import State, transform


class Counter:
    def __init__(self) -> None:
        self.n = State(jnp.int32(0), name="n")
        self.w = State(jnp.float32(2), name="w")
        self.unused = State(jnp.float32(7), name="unused")

    def __call__(self, x: Any) -> Any:
        self.n.value = self.n.value + 1
        return x * self.w.value * self.n.value


def test_the_keys_of_values_are_states() -> None:
    with pytest.raises(TypeError, match="a key must be a state, but 'x' is of type str"):
        st.Values({"x": 1})


def test_apply_is_pure_and_gives_the_new_values() -> None:
    c = Counter()
    fun = transform.functionalize(c)
    values = fun.values(3.0)
    assert set(values) == {c.n, c.w}
    out, new = fun.apply(values, 3.0)
    assert (out, new[c.n], new[c.w]) == (6.0, 1, 2.0)
    assert isinstance(new, st.Values)
    assert (c.n.value, c.w.value, values[c.n]) == (0, 2.0, 0)
    out, new = fun.apply(new, 3.0)
    assert (out, new[c.n], c.n.value) == (12.0, 2, 0)


def test_a_plain_dict_is_accepted_and_missing_states_are_constants() -> None:
    c = Counter()
    fun = transform.functionalize(c)
    out, new = fun.apply({c.w: jnp.float32(10)}, 1.0)
    assert (out, new[c.n], new[c.w]) == (10.0, 1, 10.0)
    out, new = fun.apply({}, 1.0)
    assert (out, new[c.n]) == (2.0, 1)
    assert (c.n.value, c.w.value) == (0, 2.0)


def test_apply_in_a_raw_scan_grad_and_vmap() -> None:
    c = Counter()
    fun = transform.functionalize(c)
    start = fun.values(1.0)
    final, ys = jax.lax.scan(lambda v, x: fun.apply(v, x)[::-1], start, jnp.ones(4))
    assert (final[c.n], ys.tolist()) == (4, [2.0, 4.0, 6.0, 8.0])

    def loss(w: Any, x: Any) -> Any:
        return fun.apply({**start, c.w: w}, x)[0]

    assert jax.grad(loss)(5.0, 3.0) == 3.0
    assert jax.vmap(loss, (None, 0))(5.0, jnp.arange(3.0)).tolist() == [0.0, 5.0, 10.0]
    lanes = jax.tree.map(lambda v: jnp.stack([v, v + 1]), start)
    out, new = jax.vmap(fun.apply, (0, None))(lanes, 1.0)
    assert (out.tolist(), new[c.n].tolist()) == ([2.0, 6.0], [1, 2])
    assert c.n.value == 0


def test_apply_inside_a_transform_of_ours_leaves_the_states_alone() -> None:
    c = Counter()
    fun = transform.functionalize(c)

    @transform.jit
    def f(x: Any) -> Any:
        out, new = fun.apply(fun.values(x), x)
        c.w.value = new[c.n] * 1.0
        return out

    assert (f(1.0), c.n.value, c.w.value) == (2.0, 0, 1.0)
    assert (f(1.0), c.n.value, c.w.value) == (1.0, 0, 1.0)


def test_st_update_takes_what_apply_returns() -> None:
    c = Counter()
    fun = transform.functionalize(c)
    _, new = fun.apply(fun.values(1.0), 1.0)
    states = st.states(c)
    st.update(states, {key: new.get(state, state.value) for key, state in states.items()})
    assert (c.n.value, c.unused.value) == (1, 7.0)


def test_trace_tells_what_is_read_written_and_created() -> None:
    c, kept = Counter(), []

    def f(x: Any) -> Any:
        kept.append(State(x * 1.0, name="made"))
        return c(x)

    record = transform.functionalize(c).trace(3.0)
    assert set(record.reads) == {c.n, c.w}
    assert list(record.written) == [c.n]
    assert list(record.created) == []
    assert isinstance(record.jaxpr, jax.extend.core.ClosedJaxpr | jax.extend.core.Jaxpr)
    assert [aval.str_short() for aval in jax.tree.leaves(record.in_avals)][:1] == ["float32[]"]
    assert "float32[]" in [aval.str_short() for aval in jax.tree.leaves(record.out_avals)]
    assert len(transform.functionalize(f).trace(3.0).created) == 1
    assert c.n.value == 0


def test_a_trace_is_kept_for_a_signature() -> None:
    runs, c = [0], Counter()

    def f(x: Any) -> Any:
        runs[0] += 1
        return c(x)

    fun = transform.functionalize(f)
    assert fun.trace(1.0) is fun.trace(2.0)
    fun.values(3.0)
    assert runs == [1]
    fun.trace(jnp.ones(2))
    assert runs == [2]


def test_values_may_have_other_types_than_the_states() -> None:
    s = State(jnp.float32(1), name="s")
    fun = transform.functionalize(lambda x: s.value + x)
    assert fun.apply({s: jnp.ones(3)}, 1.0)[0].tolist() == [2.0, 2.0, 2.0]
    assert jax.eval_shape(fun.apply, st.Values({s: 1.0}), 1.0)[0].shape == ()


def test_values_do_not_keep_states_alive_in_the_caches_of_jax() -> None:
    c = Counter()
    fun = transform.functionalize(c)
    jax.jit(fun.apply)(fun.values(1.0), 1.0)
    ref = weakref.ref(c.n)
    del c, fun
    gc.collect()
    assert ref() is None


def test_a_lifted_transform_carries_states() -> None:
    n = State(jnp.float32(1), name="n")

    def f(x: Any) -> Any:
        n.value = n.value + 1.0
        return x * n.value

    lifted = transform.lift(jax.checkpoint)
    g = lifted(f, policy=jax.checkpoint_policies.everything_saveable)
    assert (g(1.0), g(1.0), n.value) == (2.0, 3.0, 3.0)
    assert transform.grad(g)(5.0) == 4.0
    assert transform.lift(jax.jit)(f)(1.0) == 5.0

    def twice(fun: Any) -> Any:
        return lambda *args: jax.tree.map(lambda leaf: leaf * 1, fun(*args))

    assert transform.lift(twice)(f)(1.0) == 6.0
    assert n.value == 6.0
    power = lambda x, k: x**k * n.value if k > 1 else x  # Python decides on `k`
    assert transform.lift(jax.jit)(power, static_argnums=1)(2.0, 3) == 48.0
    assert transform.lift(jax.checkpoint)(static_argnames="k")(power)(2.0, k=1) == 2.0


def test_a_lifted_transform_that_calls_its_function_twice_is_refused_where_states_are_used() -> None:
    n = State(jnp.float32(1), name="n")

    def slope(fun: Any) -> Any:
        return lambda x: jax.tree.map(jnp.subtract, fun(x + 1), fun(x))

    def write(x: Any) -> Any:
        n.value = x
        return x

    lifted = transform.lift(slope)
    assert lifted(lambda x: x * 3)(1.0) == 3.0
    for f in (lambda x: x * n.value, write):
        with pytest.raises(TypeError, match=r"called a second time by the transform around it.*functionalize"):
            lifted(f)(1.0)
    assert n.value == 1.0


def test_a_lifted_transform_works_as_a_decorator_of_methods() -> None:
    class Model:
        def __init__(self) -> None:
            self.n = State(jnp.float32(0), name="n")

        @transform.lift(jax.checkpoint)
        def step(self, x: Any) -> Any:
            self.n.value = self.n.value + x
            return self.n.value

    a, b = Model(), Model()
    assert [float(a.step(1.0)), float(b.step(5.0)), float(a.step(1.0))] == [1.0, 5.0, 2.0]


def test_what_is_read_and_never_used_is_an_input_all_the_same() -> None:
    both, none, used = State({"a": jnp.ones(2), "b": jnp.zeros(3)}), State(jnp.float32(7)), State(jnp.float32(3))

    def f(x: Any) -> Any:
        _ = none.value
        return x * used.value + both.value["a"].sum()

    call = transform.functionalize(f).trace(2.0)
    assert call.reads == [none, used, both]
    assert [aval.shape for aval in call.in_avals] == [(), (), (), (2,), (3,)]
    assert float(call.apply((2.0,), {}, {s: s.value for s in call.reads})[0]) == 8.0
    assert float(transform.jit(transform.grad(transform.checkpoint(f)))(2.0)) == 3.0


def test_functionalize_and_make_jaxpr_are_decorators_with_options() -> None:
    class Cell:
        def __init__(self, value: float) -> None:
            self.u = State(jnp.float32(value), name="u")

        @transform.functionalize(static_argnums=1)
        def power(self, x: Any, k: int) -> Any:
            self.u.value = self.u.value + (x**k if k > 1 else x)
            return self.u.value

    @transform.make_jaxpr(static_argnums=1, return_shape=True)
    def shown(x: Any, k: int) -> Any:
        return x**k * cell.u.value

    for start in (1.0, 2.0):
        cell = Cell(start)
        out, new = cell.power.apply(cell.power.values(3.0, 2), 3.0, 2)
        assert (out, new[cell.u], cell.u.value) == (start + 9.0, start + 9.0, start)
    jaxpr, shape = shown(jnp.ones(3), 2)
    assert shape.shape == (3,)
    assert len(jaxpr.jaxpr.invars) == 2
    assert (cell.power.__name__, shown.__name__) == ("power", "shown")
    assert transform.functionalize()(lambda x, /, *, k=3: x + k).apply({}, 1.0)[0] == 4.0
    assert len(transform.make_jaxpr()(lambda x: x)(1.0).jaxpr.invars) == 1


def test_a_pure_call_changes_no_container_of_the_caller() -> None:
    def f(batch: dict[str, Any]) -> Any:
        batch["x"] = batch["x"] + 1
        return batch["x"]

    batch, pure = {"x": jnp.float32(1)}, transform.functionalize(f)
    out, _ = pure.apply(pure.values(batch), batch)
    assert (out, batch["x"]) == (2.0, 1.0)


@pytest.mark.parametrize("transform_of_jax", [jax.jit, jax.grad, jax.checkpoint, jax.vmap, jax.eval_shape])
def test_a_plain_dict_of_states_goes_through_a_raw_transform(transform_of_jax: Any) -> None:
    a, b = State(2.0, name="a"), State(3.0, name="b")
    pure = transform.functionalize(lambda x: a.value * b.value * x)
    apply = lambda values, x: pure.apply(values, x)[0]
    values = {b: jnp.full(1, 7.0), a: jnp.full(1, 5.0)}
    assert jax.jit(pure.apply)(values, 2.0)[0] == 70
    ours, theirs = apply, lambda values, x: values["a"] * values["b"] * x
    given = {"a": values[a], "b": values[b]}
    if transform_of_jax is jax.grad:
        got, expected = jax.grad(lambda v: ours(v, 2.0).sum())(values), jax.grad(lambda v: theirs(v, 2.0).sum())(given)
        assert (got[a], got[b]) == (expected["a"], expected["b"])
    elif transform_of_jax is jax.eval_shape:
        assert jax.eval_shape(ours, values, 2.0) == jax.eval_shape(theirs, given, 2.0)
    elif transform_of_jax is jax.vmap:
        assert jax.vmap(ours, in_axes=(0, None))(values, 2.0) == jax.vmap(theirs, in_axes=(0, None))(given, 2.0)
    else:
        assert transform_of_jax(ours)(values, 2.0) == theirs(given, 2.0)
    steps = jax.lax.scan(lambda c, v: (c, apply(v, 2.0)), 0.0, values)[1]
    assert steps.tolist() == [70.0]


@pytest.mark.parametrize("compare", [lambda a, b: a < b, lambda a, b: min(a, b), lambda a, b: sorted([a, b]), max])
def test_states_have_no_order_for_anyone_else(compare: Any) -> None:
    with pytest.raises(TypeError, match="is not an array, but is used as one"):
        compare(State(2.0), State(1.0))
