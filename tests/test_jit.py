"""`jit`: what it finds again on each call, what it takes as arguments, and how often it traces."""

from __future__ import annotations

import functools
import threading
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import State, StateTraceError, transform

WRAPS = {
    "jit": transform.jit,
    "checkpoint": transform.checkpoint,
    "jit of checkpoint": lambda f: transform.jit(transform.checkpoint(f)),
    "lambda in jit": lambda f: transform.jit(lambda *args: f(*args)),
    "jit of grad": lambda f: transform.jit(transform.value_and_grad(f, argnums=-1)),
}


@pytest.fixture(params=WRAPS)
def wrap(request: pytest.FixtureRequest) -> Any:
    """A transform that keeps traces, giving the plain output."""
    transformed = WRAPS[request.param]
    if request.param != "jit of grad":
        return transformed
    return lambda f: (lambda g: lambda *args: g(*args)[0])(transformed(f))


class Cell:
    def __init__(self, value: float) -> None:
        self.s = State(jnp.float32(value), name="s")

    def read(self) -> Any:
        return self.s.value

    def read_global(self) -> Any:
        return global_cell.s.value


class Shared:
    s = State(jnp.float32(1), name="shared")

    def read(self) -> Any:
        return self.s.value


global_cell = Cell(1.0)
global_module = types.ModuleType("global_module")


def test_a_rebound_attribute_of_a_module_is_followed(wrap: Any) -> None:
    global_module.s = State(jnp.float32(1))
    f = wrap(lambda x: global_module.s.value * x)
    assert f(2.0) == 2.0
    global_module.s = State(jnp.float32(5))
    assert f(2.0) == 10.0


def test_a_rebound_class_attribute_is_followed(wrap: Any) -> None:
    Shared.s = State(jnp.float32(1))
    shared = Shared()
    f, g = wrap(lambda x: Shared.s.value * x), wrap(lambda x: shared.read() * x)
    assert f(2.0) == g(2.0) == 2.0
    Shared.s = State(jnp.float32(5))
    assert f(2.0) == 10.0
    assert g(2.0) == 10.0
    shared.s = State(jnp.float32(7))  # the instance's attribute hides that of the class
    assert g(2.0) == 14.0


def test_a_rebound_global_that_a_method_reads_is_followed(wrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "global_cell", Cell(1.0))
    reader = Cell(0.0)
    f = wrap(lambda x: reader.read_global() * x)
    assert f(2.0) == 2.0
    monkeypatch.setitem(globals(), "global_cell", Cell(5.0))
    assert f(2.0) == 10.0


@pytest.mark.parametrize(
    "hold",
    [types.SimpleNamespace, dict, lambda s: Cell.__new__(Cell)],
    ids=["namespace", "dict", "object"],
)
def test_a_rebound_field_of_a_holder_is_followed(wrap: Any, hold: Any) -> None:
    first, second = State(jnp.float32(1)), State(jnp.float32(5))
    holder = hold(s=first) if hold in (types.SimpleNamespace, dict) else hold(first)
    get = (lambda: holder["s"]) if hold is dict else (lambda: holder.s)
    put = (lambda s: holder.update(s=s)) if hold is dict else (lambda s: setattr(holder, "s", s))
    put(first)
    f = wrap(lambda x: get().value * x)
    assert f(2.0) == 2.0
    put(second)
    assert f(2.0) == 10.0


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_list_that_grows_or_shrinks_is_noticed(wrap: Any, n: int) -> None:
    items = [State(jnp.float32(1)) for _ in range(n)]
    always = State(jnp.float32(0))
    f = wrap(lambda x: always.value + x * sum(item.value for item in items))
    assert f(2.0) == 2.0 * n
    items.append(State(jnp.float32(10)))
    assert f(2.0) == 2.0 * (n + 10)
    items.clear()
    assert f(2.0) == 0.0


def test_a_dict_with_other_keys_of_the_same_number_is_noticed(wrap: Any) -> None:
    items = {"a": State(jnp.float32(1)), "b": State(jnp.float32(2))}
    f = wrap(lambda x: x * sum(item.value for item in items.values()))
    assert f(1.0) == 3.0
    del items["b"]
    items["c"] = State(jnp.float32(20))
    assert f(1.0) == 21.0


def test_an_alias_of_a_state_is_followed_when_it_is_rebound(wrap: Any) -> None:
    s, other = State(jnp.float32(1)), State(jnp.float32(10))
    names = {"a": s, "b": s}
    f = wrap(lambda x: names["a"].value * x + names["b"].value)
    assert f(1.0) == 2.0
    names["b"] = other
    assert f(1.0) == 11.0
    names["a"] = other
    assert f(1.0) == 20.0
    names["b"] = s
    assert f(1.0) == 11.0


@pytest.mark.parametrize("kind", ["state", "object"])
def test_a_pointer_into_a_list_of_buffers_is_followed(wrap: Any, kind: str) -> None:
    cells = [Cell(1.0), Cell(10.0)]
    model = types.SimpleNamespace(buffers=cells if kind == "object" else [c.s for c in cells])
    model.first, model.second = model.buffers
    model.current = model.buffers[0]
    get = lambda: model.current.s if kind == "object" else model.current

    def step(x: Any) -> Any:
        get().value = get().value + 1.0
        return get().value * x

    f = wrap(step)
    for i in range(1, 4):
        for j in range(2):
            model.current = model.buffers[j]
            assert f(1.0) == 1.0 + 9.0 * j + i
    assert [float(cell.s.value) for cell in cells] == [4.0, 13.0]


@pytest.mark.parametrize("name", ["jit", "checkpoint"])
def test_an_alias_inside_an_argument_is_followed(name: str) -> None:
    a, b = Cell(1.0), Cell(10.0)
    f = WRAPS[name](lambda pair, x: pair.left.s.value * x + pair.right.s.value)
    pair = types.SimpleNamespace(left=a, right=a)
    assert f(pair, 1.0) == 2.0
    pair.right = b
    assert f(pair, 1.0) == 11.0
    pair.left = b
    assert f(pair, 1.0) == 20.0
    g = WRAPS[name](lambda pair, x: pair["left"].value * x + pair["right"].value)
    pairs = [(a.s, a.s), (a.s, b.s), (b.s, a.s), (b.s, b.s)]
    for _ in range(2):
        assert [g({"left": p, "right": q}, 2.0) for p, q in pairs] == [3.0, 12.0, 21.0, 30.0]


def test_two_states_that_change_places_are_followed(wrap: Any) -> None:
    pair = [State(jnp.float32(1), name="one"), State(jnp.float32(10), name="ten")]

    def f(x: Any) -> Any:
        pair[0].value = pair[0].value + 1.0
        return pair[0].value - pair[1].value * x

    g = wrap(f)
    assert g(1.0) == -8.0
    pair.reverse()
    assert g(1.0) == 9.0
    assert [s.value for s in pair] == [11.0, 2.0]


def test_a_partial_and_a_callable_object_are_followed(wrap: Any) -> None:
    cell = Cell(1.0)
    f = wrap(functools.partial(lambda cell, x: cell.s.value * x, cell))
    assert f(2.0) == 2.0
    cell.s = State(jnp.float32(5))
    assert f(2.0) == 10.0
    cell.s.value = jnp.float32(6)
    assert f(2.0) == 12.0


def test_an_object_passed_as_an_argument_is_followed() -> None:
    f = transform.jit(lambda cells, x: cells["a"].s.value * x)
    a, b = Cell(1.0), Cell(2.0)
    assert [f({"a": c}, 1.0) for c in (a, b, a, b)] == [1.0, 2.0, 1.0, 2.0]
    a.s = State(jnp.float32(5))
    assert f({"a": a}, 1.0) == 5.0
    namespace = types.SimpleNamespace(s=State(jnp.float32(7)))
    assert f({"a": namespace}, 1.0) == 7.0


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


def test_going_back_to_an_earlier_structure_does_not_trace_again(wrap: Any) -> None:
    s, runs = State({"a": jnp.float32(1)}), [0]

    def f(x: Any) -> Any:
        runs[0] += 1
        return x * sum(jnp.sum(v) for v in s.value.values())

    g = wrap(f)
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


def test_a_static_state_is_part_of_the_key(wrap: Any) -> None:
    mode, runs = State("double", static=True), [0]

    def f(x: Any) -> Any:
        runs[0] += 1
        return 2 * x if mode.value == "double" else -x

    g = wrap(f)
    for value, expected in [("double", 2.0), ("negate", -1.0), ("double", 2.0), ("negate", -1.0)]:
        mode.value = value
        assert g(1.0) == expected
    assert runs == [2]
    for value in (1, 1.0, True):
        mode.value = value
        assert g(1.0) == -1.0


def test_a_static_state_that_is_written_holds_its_new_value() -> None:
    mode = State("train", static=True)

    @transform.jit
    def f(x: Any) -> Any:
        mode.value = "eval" if mode.value == "train" else "train"
        return x

    for expected in ("eval", "train", "eval", "train"):
        f(1.0)
        assert mode.value == expected


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


@pytest.mark.parametrize("value", [1, 1.0, True, 1j, np.float32(1), np.arange(3), np.int8(1), np.float64(1)])
def test_values_are_typed_as_jax_types_the_same_argument(value: Any) -> None:
    s = State(value)

    def f(x: Any) -> Any:
        s.value = s.value + x
        return s.value * x

    twin = jax.jit(lambda v, x: ((v + x) * x, v + x))
    for x in (1, 1.5, jnp.bfloat16(2), jnp.ones(3, jnp.int16), np.float32(1)):
        s.value = value
        out, (reference, new) = transform.jit(f)(x), twin(value, x)
        for ours, theirs in ((out, reference), (s.value, new)):
            assert (ours.dtype, ours.weak_type, ours.shape) == (
                theirs.dtype,
                theirs.weak_type,
                theirs.shape,
            )
            assert jnp.array_equal(ours, theirs)


def test_a_compiled_program_reads_and_writes_the_present_values() -> None:
    s = State(jnp.float32(1), name="s")

    @transform.jit
    def f(x: Any) -> Any:
        s.value = s.value + x
        return s.value * 2

    compiled = f.lower(jnp.float32(0)).compile()
    assert s.value == 1.0
    assert compiled(jnp.float32(2)) == 6.0
    s.value = jnp.float32(10)
    assert compiled(jnp.float32(1)) == 22.0
    assert f.trace(jnp.float32(0)).lower().compile()(jnp.float32(1)) == 24.0
    assert s.value == 12.0


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


def test_donated_states_are_right_and_read_only_ones_survive() -> None:
    w, u = State(jnp.ones(4), name="w"), State(jnp.zeros(4), name="u")

    @transform.jit(donate_states=True)
    def f(x: Any) -> Any:
        u.value = u.value + w.value * x
        return u.value.sum()

    assert [f(1.0), f(1.0), f(1.0)] == [4.0, 8.0, 12.0]
    assert w.value.sum() == 4.0
    u.value = w.value  # two states with one buffer, one of them donated: refused, as by JAX
    with pytest.raises(StateTraceError, match="hold the same array"):
        f(1.0)
    assert u.value.sum() == w.value.sum() == 4.0


def test_a_wrong_option_is_refused_where_it_stands() -> None:
    with pytest.raises(TypeError, match="static_argnum"):
        transform.jit(lambda x: x, static_argnum=1)


def test_a_function_may_call_itself() -> None:
    n = State(jnp.int32(0))

    @transform.jit(static_argnums=0)
    def f(depth: int, x: Any) -> Any:
        n.value = n.value + 1
        return x if depth == 0 else f(depth - 1, x * 2.0)

    assert f(4, 1.0) == 16.0
    assert n.value == 5
    assert f(4, 1.0) == 16.0
    assert n.value == 10


def test_the_same_array_in_two_states_and_an_argument() -> None:
    array = jnp.float32(2)
    a, b = State(array), State(array)

    @transform.jit
    def f(x: Any) -> Any:
        a.value = a.value * x
        return a.value + b.value

    assert f(array) == 6.0
    assert (a.value, b.value, array) == (4.0, 2.0, 2.0)


def test_threads_that_call_one_function_do_not_meet() -> None:
    cells = [Cell(float(i)) for i in range(8)]

    @transform.jit
    def f(cell: Cell, x: Any) -> Any:
        cell.s.value = cell.s.value + x
        return cell.s.value

    errors: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for _ in range(5):
                f(cells[i], jnp.float32(1))
        except BaseException as error:  # reported below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [float(cell.s.value) for cell in cells] == [i + 5.0 for i in range(8)]


def test_a_thread_that_traces_does_not_change_what_another_one_reads() -> None:
    s, seen = State(jnp.float32(1)), []

    @transform.jit
    def f(x: Any) -> Any:
        s.value = s.value + x
        other = threading.Thread(target=lambda: seen.append(s.value))
        other.start()
        other.join()
        return s.value

    assert f(1.0) == 2.0
    assert seen == [1.0]


@pytest.mark.parametrize("wrapped", ["jit", "checkpoint", "grad", "vmap"])
def test_no_tracer_leaks(wrapped: str) -> None:
    s = State(jnp.float32(1), name="s")

    def f(x: Any) -> Any:
        s.value = s.value + 1.0
        return s.value * jnp.sin(x)

    with jax.checking_leaks():
        g = getattr(transform, wrapped)(f)
        x = jnp.ones(2) if wrapped == "vmap" else 1.0
        g(x), g(x)
        transform.jit(transform.grad(transform.checkpoint(f)))(1.0)
    assert s.value == 4.0


def test_a_nan_that_jax_is_told_to_refuse_changes_no_state() -> None:
    s = State(jnp.float32(1), name="s")

    @transform.jit
    def f(x: Any) -> Any:
        s.value = s.value + 1.0
        return jnp.log(x)

    f(1.0)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        f(-1.0)
    assert s.value == 2.0


def test_jax_disable_jit_gives_the_same_values() -> None:
    s = State(jnp.float32(1), name="s")

    def f(x: Any) -> Any:
        s.value = s.value + x
        return transform.scan(lambda c, _: (c * s.value, None), x, None, length=2)[0]

    g = transform.jit(transform.checkpoint(f))
    assert g(2.0) == 18.0
    with jax.disable_jit():
        assert g(2.0) == 50.0
        assert transform.jit(f)(2.0) == 98.0
    assert s.value == 7.0


def test_a_state_may_be_returned_by_reference() -> None:
    s = State(jnp.float32(1))
    f = transform.jit(lambda x: {"state": s, "x": x})
    assert f(1.0)["state"] is s
    assert f(1.0)["state"] is s


def test_many_states_are_read_and_written() -> None:
    states = {f"s{i}": State(jnp.float32(i)) for i in range(300)}

    @transform.jit
    def f(x: Any) -> Any:
        for state in list(states.values())[::2]:
            state.value = state.value + x
        return sum(state.value for state in states.values())

    total = 300 * 299 / 2
    assert f(1.0) == total + 150
    assert f(1.0) == total + 300
    states["s0"].value = jnp.float32(1000)
    assert f(1.0) == total + 1000 + 448
    assert st.values(states["s1"]) == 1.0


class Logged:
    """An object with a log of its own."""

    def __init__(self, slope: float = 1.0) -> None:
        self.u, self.log, self.slope = State(jnp.float32(0), name="u"), [], slope

    @transform.jit
    def step(self, x: Any) -> None:
        jax.debug.callback(lambda x: self.log.append(float(x)), x)
        self.u.value = self.u.value + x

    @transform.jit
    def ruled(self, x: Any) -> Any:
        @jax.custom_vjp
        def f(x: Any) -> Any:
            return x

        f.defvjp(lambda x: (x, None), lambda _, ct: (ct * self.slope,))
        return f(x) + self.u.value


def test_a_callback_reaches_the_object_of_its_own_call() -> None:
    one, two = Logged(), Logged()
    for _ in range(3):
        one.step(1.0), two.step(2.0)
    jax.effects_barrier()
    assert (one.log, two.log) == ([1.0] * 3, [2.0] * 3)


def test_a_callback_of_a_function_made_anew_is_its_own() -> None:
    def count() -> int:
        seen: list[int] = []
        f = transform.jit(lambda x: (jax.debug.callback(lambda: seen.append(1)), x)[1])
        f(1.0), f(1.0)
        jax.effects_barrier()
        return len(seen)

    assert [count() for _ in range(3)] == [2, 2, 2]


def test_a_rule_that_looks_at_an_object_later_looks_at_the_object_of_its_own_call() -> None:
    one, two = Logged(10.0), Logged(20.0)
    slope = lambda logged: float(transform.grad(logged.ruled)(1.0))
    assert [slope(logged) for logged in (one, two, one, two)] == [10.0, 20.0, 10.0, 20.0]
    one.slope = 30.0
    assert slope(one) == 30.0
