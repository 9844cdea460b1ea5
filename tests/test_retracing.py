"""When a function is traced again, and when an earlier trace serves."""

from __future__ import annotations

import collections
import types
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from statetransform import State, inspect, policies, transform


def test_a_signature_that_uses_more_states_than_the_first_one() -> None:
    a, b, runs = State(jnp.float32(1)), State(jnp.float32(10)), [0]

    @transform.jit
    def f(x: Any) -> Any:
        runs[0] += 1
        if jnp.ndim(x):
            b.value = b.value + a.value
        else:
            a.value = a.value + 1.0
        return x

    for i in range(1, 4):
        f(jnp.float32(0))
        assert a.value == i + 1
        f(jnp.ones(2))
    assert b.value == 10 + 2 + 3 + 4
    assert runs == [2]


def test_going_back_to_an_earlier_structure_does_not_trace_again(traced: Any) -> None:
    s, runs = State({"a": jnp.float32(1)}), [0]

    def f(x: Any) -> Any:
        runs[0] += 1
        return x * sum(jnp.sum(v) for v in s.value.values())

    g = traced(f)
    forms = [
        {"a": jnp.float32(1)},
        {"a": jnp.float32(1), "b": jnp.ones(3)},
        {"a": jnp.ones((2, 2))},
    ]
    for _ in range(3):
        for form, total in zip(forms, (1.0, 4.0, 4.0), strict=True):
            s.value = form
            assert g(1.0) == total
    assert runs == [3]


def test_a_static_state_is_part_of_the_key(traced: Any) -> None:
    mode, runs = State("double", static=True), [0]

    def f(x: Any) -> Any:
        runs[0] += 1
        return 2 * x if mode.value == "double" else -x

    g = traced(f)
    for value, expected in [("double", 2.0), ("negate", -1.0), ("double", 2.0), ("negate", -1.0)]:
        mode.value = value
        assert g(1.0) == expected
    assert runs == [2]
    for value in (1, 1.0, True):
        mode.value = value
        assert g(1.0) == -1.0


def test_x64_on_and_off_are_different_traces() -> None:
    s = State(1.5)
    f = transform.jit(lambda x: s.value * x)
    assert f(2.0).dtype == jnp.float32
    with jax.enable_x64(True):
        assert f(2.0).dtype == jnp.float64
        s.value = jnp.float64(1) / 3
        assert f(2.0) == 2 / 3
    s.value = 1.5
    assert f(2.0).dtype == jnp.float32


def test_clear_cache_forgets_the_traces_and_nothing_else() -> None:
    s, runs = State(jnp.float32(0)), [0]

    @transform.jit
    def f(x: Any) -> None:
        runs[0] += 1
        s.value = s.value + x

    f(1.0), f(1.0)
    f.clear_cache()
    f(1.0), f(1.0)
    assert (runs, float(s.value)) == ([2], 4.0)


TWINS: dict[str, tuple[Any, Any]] = {
    "jit": (transform.jit, jax.jit),
    "checkpoint": (transform.checkpoint, jax.checkpoint),
    "jit of checkpoint": (lambda f: transform.jit(transform.checkpoint(f)), lambda f: jax.jit(jax.checkpoint(f))),
    "grad of jit": (
        lambda f: transform.grad(transform.jit(f)),
        lambda f: jax.grad(jax.jit(f), argnums=1, has_aux=True),
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_wrappers_made_anew_trace_as_often_as_those_of_jax(name: str) -> None:
    runs, reference, s = [0], [0], State(jnp.float32(1), name="s")
    ours, theirs = TWINS[name]

    def f(x: Any) -> Any:
        runs[0] += 1
        s.value = s.value + 1.0
        return s.value * x

    def twin(s: Any, x: Any) -> Any:
        reference[0] += 1
        return (s + 1.0) * x, s + 1.0

    value = jnp.float32(1)
    for _ in range(3):
        ours(f)(2.0)
        _, value = theirs(twin)(value, 2.0)
    assert s.value == value
    assert runs == reference


def test_wrappers_made_anew_with_other_options_do_not_mix() -> None:
    s = State(jnp.float32(2), name="s")
    f = lambda x, n: s.value * x * (n if isinstance(n, int) else 100)
    for wrap in (transform.jit, transform.checkpoint):
        assert wrap(f, static_argnums=1)(1.0, 3) == 6.0
        assert wrap(f)(1.0, 3) == 200.0
        assert wrap(f, static_argnums=1)(1.0, 3) == 6.0
    other = State(jnp.float32(5), name="other")
    g = lambda x: s.value * other.value * x
    assert transform.checkpoint(g, states=s)(1.0) == transform.checkpoint(g)(1.0) == 10.0
    assert transform.grad(transform.checkpoint(g), states=other)(1.0) == 2.0


def test_jax_clear_caches_is_survived() -> None:
    runs, s = [0], State(jnp.float32(1))

    def f(x: Any) -> Any:
        runs[0] += 1
        s.value = s.value + x
        return s.value

    for wrap in (transform.jit, transform.checkpoint):
        s.value = jnp.float32(1)
        g = wrap(f)
        g(1.0), g(1.0)
        jax.clear_caches()
        assert (g(1.0), g(1.0)) == (4.0, 5.0)


class Counted:
    made = 0

    def __init__(self) -> None:
        Counted.made += 1
        self.vars = [State(jnp.float32(1))]


def test_an_attribute_called_vars_makes_no_class_attribute_count() -> None:
    runs = [0]

    @transform.jit
    def f(counted: Any, x: Any) -> Any:
        runs[0] += 1
        return x * counted.vars[0].value

    for _ in range(4):
        assert f(Counted(), 2.0) == 2.0
    assert runs == [1]


def test_a_type_or_static_value_that_is_new_blames_no_older_change() -> None:
    mode = State("a", static=True, name="mode")

    class Model:
        k = 2

        @transform.jit
        def step(self, x: Any) -> Any:
            return x * self.k if mode.value != "z" else x

    model = Model()
    model.step(1.0)
    model.k = 3
    model.step(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in "bc":
            mode.value = value
            model.step(1.0)
    assert str(inspect.explain_retrace(Model.step)).count("self.k") == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda f: transform.checkpoint(f),
        lambda f: transform.checkpoint(f, policy=policies.save_larger_than("1 KiB")),
        lambda f: transform.lift(jax.jit)(f),
        lambda f: transform.jit(f),
    ],
    ids=["checkpoint", "policy", "lift", "jit"],
)
def test_wrappers_made_in_init_share_a_trace(make: Any) -> None:
    class Layer:
        def __init__(self) -> None:
            self.w = State(jnp.ones(3))
            self.f = make(self.call)

        def call(self, x: Any) -> Any:
            return checkpoint_name(x * self.w.value, "a")

    use = transform.jit(lambda layer, x: layer.f(x))
    for _ in range(4):
        use(Layer(), 1.0)
    assert len(inspect.explain_retrace(use)) == 1


MAPPINGS = {
    "dict": dict, "OrderedDict": collections.OrderedDict, "defaultdict": lambda d: collections.defaultdict(float, d),
    "Counter": collections.Counter, "mappingproxy": types.MappingProxyType, "UserDict": collections.UserDict,
    "ChainMap": collections.ChainMap,
}  # fmt: skip


@pytest.mark.parametrize("held", ["numbers", "states"])
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_view_of_a_dict_counts_by_content_as_the_dict_does(mapping: str, held: str) -> None:
    w, contents = State(jnp.float32(1)), {"a": 2.0, "b": 3.0}
    if held == "states":
        contents = {name: State(jnp.float32(value)) for name, value in contents.items()}
    whole = MAPPINGS[mapping](contents)
    number = lambda value: value.value if isinstance(value, State) else value
    model = types.SimpleNamespace(keys=whole.keys(), values=whole.values(), items=whole.items())
    runs: list[int] = []

    @transform.jit
    def f(model: Any, x: Any) -> Any:
        runs.append(1)
        w.value = w.value + 1
        total = sum(number(v) for v in model.values) + sum(len(k) * number(v) for k, v in model.items)
        return x * total + len(model.keys)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(6):
            assert f(model, 1.0) == 12.0
    assert len(runs) == 1
    if held == "states":
        contents["a"].value = jnp.float32(4)
        assert f(model, 1.0) == 16.0
        assert len(runs) == 1
    (contents if mapping == "mappingproxy" else whole)["cc"] = contents["a"]
    expected = sum(map(number, model.values)) + sum(len(k) * number(v) for k, v in model.items) + 3
    assert f(model, 1.0) == f(model, 1.0) == expected
    assert len(runs) == 2
