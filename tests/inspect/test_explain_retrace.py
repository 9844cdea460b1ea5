"""Why a function was traced again: which argument, static value, state or setting changed, from what to what."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from statetransform import Param, State, inspect, transform

TRANSFORMS = [transform.jit, transform.checkpoint]


def changes(wrapped, trace: int) -> list[tuple[str, str, str, str]]:
    return [tuple(change) for change in inspect.explain_retrace(wrapped)[trace].changes]


@pytest.mark.parametrize("wrap", TRANSFORMS)
def test_the_first_trace_says_what_it_was_made_for_and_where(wrap):
    u = State(jnp.zeros(3), name="u")
    f = wrap(lambda x: u.value * x)
    assert len(inspect.explain_retrace(f)) == 0
    f(jnp.ones(3))
    f(jnp.zeros(3))
    (only,) = inspect.explain_retrace(f)
    assert only.site[0] == __file__
    assert only.compared_to is None
    assert changes(f, 0) == [
        ("argument", "x", "not there", "float32[3]"),
        ("state", "u", "not there", "float32[3]"),
    ]


def of_argument(wrap, before, after):
    f = wrap(lambda x: jax.tree.map(jnp.sin, x))
    f(before), f(after)
    return f


def of_static_argument(wrap, before, after):
    f = wrap(lambda x, n: x**n, static_argnums=1)
    f(2.0, before), f(2.0, after)
    return f


def of_state(wrap, before, after):
    u = State(before, name="u", static=isinstance(before, str))
    f = wrap(lambda: 1.0 * len(jax.tree.leaves(u.value)))
    f()
    u.value = after
    f()
    return f


def of_kind(wrap, before, after):
    class Model:
        @wrap
        def step(self, x):
            return self.w.value * x

    model = Model()
    for kind in (before, after):
        model.w = kind(jnp.ones(3), name="w")
        model.step(1.0)
    return model.step


def of_setting(wrap, before, after):
    f = wrap(lambda x: jnp.sin(x))
    for setting in (before, after):
        with jax.default_matmul_precision(setting):
            f(1)
    return f


@pytest.mark.parametrize("wrap", TRANSFORMS)
@pytest.mark.parametrize(
    ("kind", "before", "after", "shown"),
    [
        (of_argument, jnp.ones(3), jnp.ones(4), ("argument", "x", "float32[3]", "float32[4]")),
        (of_argument, jnp.ones(3), jnp.ones(3, int), ("argument", "x", "float32[3]", "int32[3]")),
        (of_argument, 1.0, jnp.float32(1), ("argument", "x", "float32[] (weak)", "float32[]")),
        (of_argument, {"a": 1.0}, {"a": 1.0, "b": 2}, ("argument", "x['b']", "not there", "int32[] (weak)")),
        (of_argument, (1.0, 2.0), [1.0, 2.0], ("argument", "containers", "(((*, *),), {})", "(([*, *],), {})")),
        (of_static_argument, 2, 3, ("static argument", "n", "2", "3")),
        (of_state, jnp.zeros(3), jnp.zeros((2, 2)), ("state", "u", "float32[3]", "float32[2,2]")),
        (
            of_state,
            {"a": jnp.zeros(3)},
            {"a": jnp.zeros(3), "b": 1},
            ("state", "u['b']", "not there", "int32[] (weak)"),
        ),
        (of_state, [jnp.zeros(3)], (jnp.zeros(3),), ("state", "u", "[*]", "(*,)")),
        (of_state, "train", "test", ("static state", "u", "'train'", "'test'")),
        (of_kind, State, Param, ("structure", "self.w", "State", "Param")),
        (of_setting, None, "float32", ("setting", "jax_default_matmul_precision", "None", "float32")),
    ],
)
def test_what_has_changed_is_named_with_its_values(wrap, kind, before, after, shown):
    assert changes(kind(wrap, before, after), 1) == [shown]


@pytest.mark.parametrize(
    "flag",
    ["jax_remat3", "jax_scan3", "jax_custom_vjp3", "jax_custom_jvp3", "jax_remat_barrier_no_cotangents"],
)
def test_a_flag_for_what_is_coming_in_jax_is_a_setting(flag):
    if flag not in jax.config.values:
        pytest.skip("this JAX has no such flag")
    f, before = transform.jit(lambda x: jnp.sin(x)), getattr(jax.config, flag)
    try:
        for value in (before, not before):
            jax.config.update(flag, value)
            assert f(1.0) == jnp.sin(1.0)
    finally:
        jax.config.update(flag, before)
    assert changes(f, 1) == [("setting", flag, str(before), str(not before))]


def test_a_state_that_is_a_constant():
    u, lifted = State(jnp.ones(3), name="u"), State(2.0, name="lifted")
    f = transform.checkpoint(lambda x: u.value * lifted.value * x, states=[lifted])
    f(1.0)
    u.value = jnp.zeros(3)
    f(1.0)
    assert changes(f, 1)[0][:2] == ("constant", "u")


def test_a_trace_for_one_call_only():
    made = []
    f = transform.checkpoint(lambda x: made.append(State(x)) or x)
    f(1.0)
    f(1.0)
    ((what, name, before, _),) = changes(f, 1)
    assert (what, name) == ("trace", "earlier")
    assert "stores a state that it makes" in before


def test_each_trace_is_compared_with_the_closest_one():
    f = transform.jit(lambda x, y: x.sum() + y.sum())
    f(jnp.ones(1), jnp.ones(1))
    f(jnp.ones(2), jnp.ones(2))
    f(jnp.ones(1), jnp.ones(3))
    third = inspect.explain_retrace(f)[2]
    assert third.compared_to == 1
    assert [tuple(c) for c in third.changes] == [("argument", "y", "float32[1]", "float32[3]")]


def test_wrappers_of_one_function_share_their_log_and_clearing_forgets():
    def f(x):
        return x + 1

    transform.jit(f)(1.0)
    transform.jit(f)(2)
    assert len(inspect.explain_retrace(transform.jit(f))) == 2
    transform.jit(f).clear_cache()
    assert len(inspect.explain_retrace(transform.jit(f))) == 0


def test_the_table_and_the_export():
    f = transform.jit(lambda x: x + 1)
    f(1.0)
    f(1)
    found = inspect.explain_retrace(f)
    title, head, _, first, second = str(found).splitlines()
    assert title.endswith("was traced 2 times")
    assert head.split() == ["trace", "called", "at", "what", "name", "before", "now"]
    assert "float32[] (weak)" in second
    assert first.split()[0] == "1"
    assert found.to_dicts()[1]["compared_to"] == 1
    assert found._repr_html_().count("<tr") == 3


def adam(n):
    """The state of an optimizer over many parameters."""
    params = {f"layer{i}": {"kernel": jnp.ones((n, 4)), "bias": jnp.ones(n)} for i in range(20)}
    return {"mu": params, "nu": params, "count": jnp.int32(0)}


def test_of_a_large_state_only_the_leaves_that_changed_are_shown():
    opt = State(adam(3), name="opt")
    f = transform.jit(lambda: opt.value["count"] + 1)
    f()
    opt.value = {**opt.value, "count": jnp.float32(0)}
    f()
    assert len(changes(f, 0)) == 81
    assert changes(f, 1) == [("state", "opt['count']", "int32[]", "float32[]")]
    opt.value = {**opt.value, "step": 0}  # another structure
    f()
    assert changes(f, 2) == [("state", "opt['step']", "not there", "int32[] (weak)")]


def test_no_line_is_wider_than_120_characters_unless_asked():
    opt, x = State(adam(3), name="opt"), {f"argument {i}": jnp.ones(i) for i in range(20)}
    f = transform.jit(lambda x: opt.value["count"] + 1)
    f(x)
    opt.value = adam(4)
    f(x)
    opt.value = {"a": {"b" * 200: jnp.ones(3)}}
    with pytest.raises(KeyError):
        f(x)
    found = inspect.explain_retrace(f)
    assert len(changes(f, 0)) == 20 + 81
    assert max(map(len, str(found).splitlines())) <= 120
    assert "13 more; `to_dicts()` has all" in str(found)
    assert len(changes(f, 1)) == 80
    assert "and 39 more" in str(found)  # of the same type
    assert len(str(found).splitlines()) < 30


@pytest.mark.parametrize("wrap", TRANSFORMS)
def test_a_weak_type_comes_with_advice_that_works(wrap):
    w = State(1.0, name="w")
    f = wrap(lambda: w.value * 2)
    f()
    w.value = w.value - jnp.float32(0.1)
    f()
    assert changes(f, 1) == [("state", "w", "float32[] (weak)", "float32[]")]
    (note,) = inspect.explain_retrace(f).notes
    assert note.startswith("The state `w` was a Python number") and "make it `jnp.float32(...)` in both" in note
    w = State(jnp.float32(1.0), name="w")
    f = wrap(lambda: w.value * 2)
    f()
    w.value = w.value - jnp.float32(0.1)
    f()
    assert len(inspect.explain_retrace(f)) == 1
    assert inspect.explain_retrace(f).notes == ()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (transform.grad(lambda x: x), "keeps no trace: put `transform.jit` around it"),
        (jax.jit(lambda x: x), "jax_explain_cache_misses"),
        (lambda x: x, "explain_retrace takes a function under `transform.jit`"),
        (3, "not 3 of type int"),
    ],
)
def test_what_cannot_be_explained_says_what_to_do(what, words):
    with pytest.raises(TypeError, match=words.replace("(", r"\(")):
        inspect.explain_retrace(what)


@pytest.mark.parametrize("is_kept", [False, True], ids=["gone", "kept"])
def test_a_function_that_changes_a_variable_of_its_own_is_named_with_the_variable(is_kept):
    def schedule(steps):
        def rate(count):
            nonlocal steps
            steps = float(steps)
            return count * steps

        return rate

    step = transform.jit(lambda rate, count: rate(count))
    rates = []
    for _ in range(2):
        rate = schedule(100)
        assert step(rate, 5.0) == step(rate, 5.0) == 500.0
        rates += [rate] if is_kept else []
        del rate
    (change,) = changes(step, 1)
    assert change[:3] == ("structure", "rate", "another; it changes its `steps`: 100 to 100.0")


def test_a_mesh_that_no_type_shows_is_named():
    f = transform.jit(lambda x: x * 2)
    for n in (2, 4):
        mesh = jax.make_mesh((n,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices()[:n])
        f(jax.device_put(jnp.ones(8), jax.NamedSharding(mesh, jax.P("i"))))
    ((_, name, before, after),) = changes(f, 1)
    assert name == "x" and "'i': 2" in before and "'i': 4" in after
