"""Checkpointed loops against the plain scan: values, gradients of any order, states, counts, memory and size."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import Param, RandomState, State, policies, transform

# Only a budget sets the size of blocks; here each size is run.
from statetransform._memory.loops import loops

from ..cases import spike

LENGTHS = (0, 1, 17)


def program(w: Any, x: Any, xs: Any, scan: Any, **options: Any) -> Any:
    """A pure loop that differentiates with respect to closed-over values, carry and inputs."""

    def step(carry: Any, x: Any) -> Any:
        u, n = carry
        u = jnp.tanh(w @ u + x)
        return (u, n + 1), {"sum": u.sum(), "n": n}

    (u, n), ys = scan(step, (x, 0), xs, **options)
    weights = jnp.arange(xs.shape[0], dtype=jnp.float32)
    return (u**2).sum() + ys["sum"] @ weights + (n + ys["n"].sum()) * u.sum()


def checkpointed(k: Any, block: int = 1) -> Any:
    return lambda *args, **options: loops.scan(*args, checkpoint=k, block=block, **options)


@pytest.fixture(scope="module")
def data() -> Any:
    keys = jax.random.split(jax.random.key(0), 2)
    return jax.random.normal(keys[0], (4, 4)) / 2, jnp.linspace(-1, 1, 4), jax.random.normal(keys[1], (17, 4))


def forms(n: int) -> list[tuple[int, int]]:
    """Numbers of carries and sizes of blocks that differ in a loop of so many steps."""
    every = [(0, 1), (4, 1), (30, 1), (2, 3), (1, 16), (0, 17)] if n != 7 else [(4, 1), (2, 3)]
    return list({(min(k, n), min(block, max(n, 1))): (k, block) for k, block in every}.values())


@pytest.mark.optimized
@pytest.mark.parametrize(("n", "is_reversed"), [*[(n, False) for n in LENGTHS], (0, True), (7, True)])
def test_gradients_are_those_of_the_plain_scan_to_the_last_bit(n: int, is_reversed: bool, data: Any) -> None:
    w, x, xs = data
    args = w, x, xs[:n]
    gradient = lambda scan: jax.value_and_grad(program, (0, 1, 2))(*args, scan, reverse=is_reversed)
    expected = gradient(jax.lax.scan)
    for k, block in forms(n):
        jax.tree.map(np.testing.assert_array_equal, gradient(checkpointed(k, block)), expected)


COMPOSED: dict[str, Any] = {
    "jit_grad": lambda f: lambda w, x, xs: jax.jit(jax.grad(f, (0, 1, 2)))(w, x, xs),
    "jvp": lambda f: lambda w, x, xs: jax.jvp(f, (w, x, xs), (w, x, xs)),
    "jacfwd": lambda f: lambda w, x, xs: jax.jacfwd(f, 1)(w, x, xs),
    "hessian": lambda f: jax.jit(lambda w, x, xs: jax.hessian(f, 1)(w, x, xs)),
    "jacrev_jacrev": lambda f: jax.jit(lambda w, x, xs: jax.jacrev(jax.jacrev(f, 1), 0)(w, x, xs)),
    "grad_grad": lambda f: lambda w, x, xs: jax.grad(lambda x: (jax.grad(f, 1)(w, x, xs) ** 2).sum())(x),
    "grad_grad_grad": lambda f: jax.jit(
        lambda w, x, xs: jax.grad(lambda x: jax.grad(lambda x: jax.grad(f, 1)(w, x, xs).sum())(x).sum())(x)
    ),
    "vmap_grad": lambda f: lambda w, x, xs: jax.vmap(jax.grad(f, 1), (None, 0, None))(w, jnp.stack([x, 2 * x]), xs),
    "vmap_grad_weights": lambda f: jax.jit(lambda w, x, xs: jax.vmap(jax.grad(f, (0, 2)), (0, None, None))(
        jnp.stack([w, -w]), x, xs
    )),
    "grad_vmap": lambda f: jax.jit(lambda w, x, xs: jax.grad(
        lambda w, xx: jax.vmap(f, (None, 0, None))(w, xx, xs).sum(), (0, 1)
    )(w, jnp.stack([x, 2 * x]))),
    "linearize": lambda f: lambda w, x, xs: jax.linearize(lambda x: f(w, x, xs), x)[1](x),
    "grad_checkpoint": lambda f: lambda w, x, xs: jax.grad(lambda x: jax.checkpoint(f)(w, x, xs))(x),
    "vmap_jvp": lambda f: jax.jit(lambda w, x, xs: jax.vmap(
        lambda t: jax.jvp(lambda x: f(w, x, xs), (x,), (t,))[1]
    )(jnp.eye(4))),
}  # fmt: skip
#: Stored carries and steps in a block, 0 for units of memory that hold a carry or a step, under which transforms.
FORMS: dict[tuple[int, int], Any] = {
    (3, 1): COMPOSED,
    (1, 4): ("hessian", "grad_grad", "vmap_grad_weights"),
    (3, 0): ("jvp", "hessian", "grad_grad", "vmap_grad", "grad_vmap"),
}


@pytest.mark.parametrize(("name", "k", "block"), [(name, *form) for form, names in FORMS.items() for name in names])
def test_it_composes(name: str, k: int, block: int, data: Any) -> None:
    w, x, xs = data
    xs, transformed = xs[:9], COMPOSED[name]
    expected = transformed(lambda *args: program(*args, jax.lax.scan))(w, x, xs)
    found = transformed(lambda *args: program(*args, checkpointed(k, block)))(w, x, xs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5), found, expected)


def counted(n: int, k: Any, block: int = 1) -> list[int]:
    """The steps in the order in which one gradient evaluates them."""
    seen: list[int] = []

    def step(carry: Any, _: Any) -> Any:
        i, x = carry
        jax.debug.callback(lambda i: seen.append(int(i)), i)
        return (i + 1, x * 1.01 + i), None

    scan = lambda x: loops.scan(step, (0, x), None, n, checkpoint=k, block=block)[0][1]
    jax.block_until_ready(jax.jit(jax.grad(scan))(1.0))
    jax.effects_barrier()
    return seen


# More carries than steps are as many as steps: once is enough.
COUNTS = [(n, k) for n in (1, 3, 12, 57) for k in (0, 1, 2, 5, 23) if k <= n or (n, k) == (3, 23)]


@pytest.mark.parametrize(("n", "k"), COUNTS)
def test_each_step_runs_as_often_as_the_schedule_says(n: int, k: int) -> None:
    schedule = st.schedule(n, k)
    expected = collections.Counter()
    for action in schedule.actions:
        if action.kind == "advance":
            expected.update(range(action.start, action.stop))
        elif action.kind == "reverse":
            expected.update([action.start])
    found = counted(n, k)
    assert len(found) == schedule.evaluations
    assert collections.Counter(found) == expected


def test_the_program_does_not_grow_with_the_number_of_steps() -> None:
    loss = lambda n: lambda x: transform.scan(lambda x, _: (jnp.tanh(x), None), x, None, n, checkpoint=20)[0]
    sizes = [len(jax.jit(jax.grad(loss(n))).lower(1.0).as_text()) for n in (100, 100_000)]
    assert abs(sizes[1] / sizes[0] - 1) < 0.01


@pytest.mark.optimized
def test_stacked_outputs_ride_in_no_stored_carry() -> None:
    def loss(x: Any) -> Any:
        step = lambda x, _: (jnp.sin(x), jnp.cos(x))
        _, ys = transform.scan(step, x, None, 400, checkpoint=5)
        return (ys**2).sum()

    memory = jax.jit(jax.grad(loss)).lower(jnp.ones(1000)).compile().memory_analysis()
    outputs, carry = 400 * 4000, 4000
    # The outputs and their cotangents, once each.
    assert memory.temp_size_in_bytes <= 2 * outputs + 12 * carry


class Simulation:
    def __init__(self) -> None:
        self.u = State({"a": jnp.linspace(0.1, 1, 4), "b": jnp.float32(0.5)}, name="u")
        self.n = State(0, name="n")
        self.w = Param(jnp.eye(4) * 0.7 + 0.1, name="w")
        self.rng = RandomState(7, name="rng")

    def run(self, x: Any, checkpoint: Any, inner: str, **options: Any) -> Any:
        closed_over = x * jnp.arange(4.0)

        def update(x: Any) -> None:
            noise = jax.random.normal(self.rng.split(), (4,))
            u = self.u.value
            self.u.value = {"a": jnp.tanh(self.w.value @ u["a"] + noise * x + closed_over), "b": u["b"] * 0.9}

        def step(carry: Any, x: Any) -> Any:
            if inner == "cond":
                transform.cond(self.n.value % 3 == 0, lambda: update(x), lambda: None)
            elif inner == "checkpoint":
                transform.checkpoint(update)(x)
            elif inner == "loop":
                transform.fori_loop(0, 3, lambda i, _: update(x * i), None, checkpoint=1)
            else:
                update(x)
            self.n.value += 1
            return carry * 1.01 + self.u.value["b"], self.u.value["a"].sum()

        carry, ys = transform.scan(step, x, jnp.linspace(0, 1, 11), checkpoint=checkpoint, **options)
        return carry + (ys * jnp.arange(11)).sum() + (self.u.value["a"] ** 2).sum()

    def gradient(self, *args: Any, **options: Any) -> Any:
        grads = transform.value_and_grad(self.run, argnums=0, states=(self.u, self.w))(*args, **options)
        return grads, self.u.value, self.n.value, jax.random.key_data(self.rng.key)


@pytest.mark.parametrize(
    ("inner", "is_compiled"), [("plain", False), *[(i, True) for i in ("plain", "cond", "checkpoint", "loop")]]
)
def test_states_of_every_kind_ride_along(inner: str, is_compiled: bool) -> None:
    def run(checkpoint: Any) -> Any:
        simulation = Simulation()
        fun = lambda x: simulation.gradient(x, checkpoint, inner, reverse=True)
        found = transform.jit(fun)(0.3) if is_compiled else fun(0.3)
        return jax.tree.map(np.asarray, (found, simulation.u.value, simulation.n.value))

    expected = run(None)
    every_form = ["step", 0, "sqrt", "log", st.MemoryBudget("1KiB")] if inner == "plain" and is_compiled else []
    for checkpoint in (3, *every_form) if inner != "loop" else (st.MemoryBudget(600),):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), run(checkpoint), expected)


@pytest.mark.parametrize("loop", ["scan", "for_loop", "fori_loop", "fori_loop_traced", "while_loop"])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_every_loop_with_few_carries_is_the_plain_one(loop: str, n: int) -> None:
    def run(x: Any, checkpoint: Any, n: Any) -> Any:
        u, i = State(jnp.ones(3), name="u"), State(0, name="i")

        def step(x: Any) -> Any:
            u.value = jnp.sin(u.value * x + i.value)
            i.value = i.value + 1
            return x * 0.9

        if loop == "scan":
            x, _ = transform.scan(lambda c, _: (step(c), None), x, None, n, checkpoint=checkpoint)
        elif loop == "for_loop":
            x = transform.for_loop(lambda: step(x), length=n, checkpoint=checkpoint).sum()
        elif "fori" in loop:
            x = transform.fori_loop(0, n, lambda i, x: step(x), x, checkpoint=checkpoint)
        else:
            x = transform.while_loop(lambda x: i.value < n, step, x, checkpoint=checkpoint)
        return x + u.value.sum(), i.value

    gradient = transform.value_and_grad(run, has_aux=True)
    if loop in ("fori_loop_traced", "while_loop"):
        reference, loop = loop, "fori_loop"
        expected = gradient(0.7, None, n)
        loop = reference
        found = transform.jit(lambda n: gradient(0.7, 2, n))(n)
    else:
        expected, found = gradient(0.7, None, n), gradient(0.7, 2, n)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


state = State(0.0, name="state")


def write(*_: Any) -> None:
    state.value = state.value + 1


TAKING_CARRIES: dict[str, Any] = {
    "scan": lambda k: transform.scan(lambda c, _: (c, write()), 0.0, None, 3, checkpoint=k),
    "for_loop": lambda k: transform.for_loop(write, length=0, checkpoint=k),
    "fori_loop": lambda k: transform.fori_loop(0, 3, write, None, checkpoint=k),
    "while_loop": lambda k: transform.while_loop(lambda i: i < 3, lambda i: (write(), i + 1)[1], 0, checkpoint=k),
    "policies.loops": policies.loops,
    "schedule": lambda k: st.schedule(100, k),
}
NO_CARRIES: list[tuple[Any, type[Exception], str]] = [
    (-1, ValueError, "the number of stored carries must be 0 or more, not -1"),
    (True, TypeError, "must be an integer, not True of type bool. Write how many carries may be stored, {example}"),
    (1.5, TypeError, "must be an integer, not 1.5 of type float. Write how many"),
    (jnp.int32(3), TypeError, "must be an integer, not Array(3, dtype=int32)"),
    ("all", ValueError, "'all' does not say which carries to store. Write how many carries may be stored, {example}"),
    (policies.dots_saveable, TypeError, "the number of stored carries must be an integer, not "),
    (policies.fit, TypeError, 'fit is not a budget yet. Call it with a size: `checkpoint=st.MemoryBudget("2GiB")`'),
]


@pytest.mark.parametrize(("given", "error", "text"), NO_CARRIES, ids=lambda x: str(x)[:20])
@pytest.mark.parametrize("where", TAKING_CARRIES)
def test_what_is_no_number_of_carries_is_refused(where: str, given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as info:
        TAKING_CARRIES[where](given)
    example = {"schedule": "`schedule(100, 20)`", "policies.loops": "`policies.loops(20)`"}.get(where, "checkpoint=20")
    assert f"{where}: " in str(info.value) and text.format(example=example) in str(info.value)
    assert ("MemoryBudget" in str(info.value)) == ((where != "schedule" and given != -1) or given is policies.fit)
    is_policy = given is policies.dots_saveable and where not in ("schedule", "policies.loops")
    assert (f"`{where}(transform.checkpoint(body, policy=...), ...)`" in str(info.value)) == is_policy
    assert state.value == 0


def test_the_carry_keeps_its_type_under_the_users_own_names() -> None:
    for checkpoint in (None, 2):
        with pytest.raises(TypeError) as info:
            transform.scan(
                lambda c, _: ({"a": c["a"].astype(int), "b": c["b"]}, None), {"a": jnp.ones(2), "b": 0.0}, None, 3,
                checkpoint=checkpoint,
            )  # fmt: skip
        assert "scan: the body changes the type of the carry" in str(info.value)
        assert "carry['a']: float32[2] on entry, int32[2] after" in str(info.value)
        with pytest.raises(TypeError, match="the body changes the structure of the carry"):
            transform.fori_loop(0, 3, lambda i, c: (c, c), 1.0, checkpoint=checkpoint)


@pytest.mark.parametrize("checkpoint", ["step", 1, 3, st.MemoryBudget("1 kB"), st.MemoryBudget("1 MB")], ids=str)
def test_weak_types_are_those_of_the_plain_loop(checkpoint: Any) -> None:
    half = jnp.ones((), jnp.bfloat16)

    def run(checkpoint: Any) -> Any:
        u = State(1.0, name="u")

        def body(carry: Any, x: Any) -> Any:
            a, b = carry
            u.value = u.value * 2
            return (a * 1.5, b * half), (a, half * a, x, 1)

        out = transform.scan(body, (0.5, 2.0), jnp.ones(6), checkpoint=checkpoint)
        first = transform.fori_loop(0, 6, lambda i, x: (x[0] * 2, x[1] + half), (1.0, 1.0), checkpoint=checkpoint)
        bounded = "sqrt" if checkpoint == "step" else checkpoint
        last = transform.while_loop(lambda x: x < 9, lambda x: x * 2, 1.0, max_steps=5, checkpoint=bounded)
        return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), (out, first, last, u.value))

    assert run(checkpoint) == run(None)


@pytest.mark.parametrize("checkpoint", [None, 2])
def test_more_steps_at_most_than_an_index_can_count_are_no_limit(checkpoint: Any) -> None:
    double = lambda x: transform.while_loop(lambda x: x < 9, lambda x: x * 2, x, max_steps=2**40, checkpoint=checkpoint)
    assert double(1.0) == 16
    if checkpoint is not None:
        assert transform.grad(double)(1.0) == 16


DERIVATIVES = {
    "grad": lambda f, s: transform.grad(lambda xs: transform.vmap(f)(xs).sum()),
    "jvp": lambda f, s: lambda xs: transform.jvp(lambda xs: transform.vmap(f)(xs), (xs,), (xs,))[1],
    "with respect to the state": lambda f, s: transform.grad(
        lambda xs: transform.vmap(f)(xs).sum() + s.value, states=s
    ),
    "vmap of grad": lambda f, s: transform.vmap(transform.grad(f)),
}


@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.parametrize("loop", ["scan", "while_loop"])
def test_a_state_that_the_lanes_share_stays_shared_under_derivatives(loop: str, name: str) -> None:
    def run(checkpoint: Any) -> Any:
        s = State(jnp.float32(1.0), name="s")

        def body(carry: Any) -> Any:
            i, x = carry
            s.value = 1.1 * s.value + 0.5
            return i + 1, x * jnp.sin(x) + 0.1 * s.value

        def f(x: Any) -> Any:
            if loop == "scan" or checkpoint is None:
                return transform.scan(lambda c, _: (body(c), None), (0, x), length=5, checkpoint=checkpoint)[0][1]
            go = lambda carry: carry[0] < 5
            return transform.while_loop(go, body, (0, x), max_steps=7, checkpoint=checkpoint)[1]

        return DERIVATIVES[name](f, s)(jnp.array([0.2, 0.5, 1.0])), s.value

    (found, after), (expected, value) = run(2), run(None)
    assert after.shape == () and after == pytest.approx(value)
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, expected)
    assert jnp.allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("checkpoint", [2, st.MemoryBudget(1000)], ids=str)
@pytest.mark.parametrize("loop", ["scan", "bounded", "unbounded"])
def test_the_step_of_a_loop_in_lanes_may_have_a_rule_for_reverse_mode_only(loop: str, checkpoint: Any) -> None:
    def run(w: Any, x: Any, checkpoint: Any) -> Any:
        step = lambda c: c + w * spike(c - x)
        if loop == "scan" or checkpoint is None:
            return transform.scan(lambda c, _: (step(c), None), x, length=20, checkpoint=checkpoint)[0]
        max_steps = 23 if loop == "bounded" else None
        go, body = lambda carry: carry[0] < 20, lambda carry: (carry[0] + 1, step(carry[1]))
        return transform.while_loop(go, body, (0, x), max_steps=max_steps, checkpoint=checkpoint)[1]

    def gradients(checkpoint: Any) -> Any:
        xs, ws = jnp.linspace(0.5, 1.5, 4), jnp.array([0.1, 0.2, 0.3])
        lanes = jax.vmap(jax.vmap(lambda w, x: run(w, x, checkpoint), (0, None)), (None, 0))
        return jax.grad(lambda *args: (lanes(*args) ** 2).sum(), (0, 1))(ws, xs)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), gradients(checkpoint), gradients(None))
