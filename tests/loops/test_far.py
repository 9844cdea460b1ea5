"""Loops with carries in host memory and on disk: gradients, transfers, device memory."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import State, transform

# Files have no name, so nobody else can see that they are gone.
from statetransform._memory.loops.far import files

from .test_unknown_length import loop, reference

SIZE, K = 50, 4
CARRY = 4 * SIZE
DEVICE = (K + 8) * CARRY  # of these are the carries at work, and the residuals of a step

pytestmark = pytest.mark.filterwarnings("ignore:.*saves nothing")


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> Any:
    yield tmp_path
    assert not list(tmp_path.iterdir())


def budget(places: str, folder: pathlib.Path, lanes: int = 1) -> st.MemoryBudget:
    """A budget by what is in host memory and on disk, in carries."""
    sizes = dict(part.split("=") for part in places.split())
    room: dict[str, Any] = {name: lanes * int(carries) * CARRY for name, carries in sizes.items()}
    return st.MemoryBudget(lanes * DEVICE, **room, **({"folder": folder} if "disk" in room else {}))


def program(x: Any, r: Any, checkpoint: Any, n: int = 200, reverse: bool = False) -> Any:
    def step(c: Any, t: Any) -> Any:
        c = jnp.sin(c * r + t)
        return c, c.sum()

    c, ys = transform.scan(step, x, jnp.linspace(0.0, 1.0, n), checkpoint=checkpoint, reverse=reverse)
    return (c**2).sum() + ys @ jnp.arange(n, dtype=jnp.float32)


ARGS = jnp.linspace(0.0, 1.0, SIZE), jnp.linspace(0.9, 1.1, SIZE)
PLACES = ["host=100", "disk=100", "host=5 disk=100", "host=2 disk=1", "disk=1"]


@pytest.mark.optimized
@pytest.mark.parametrize("places", PLACES)
def test_gradients_are_those_of_stored_carries_to_the_last_bit(places: str, folder: pathlib.Path) -> None:
    far = budget(places, folder)
    gradient = lambda checkpoint, **options: jax.value_and_grad(program, (0, 1))(*ARGS, checkpoint, **options)
    jax.tree.map(np.testing.assert_array_equal, gradient(far), gradient(K))
    backwards = places in PLACES[2:4]  # where carries are in both places
    compiled = lambda checkpoint: jax.jit(lambda: gradient(checkpoint, reverse=backwards))()
    jax.tree.map(np.testing.assert_array_equal, compiled(far), compiled(K))


@pytest.mark.parametrize("places", PLACES[:3])
def test_choices_say_what_goes_where_and_evaluations_and_transfers_are_as_planned(
    places: str, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = {"step": 0, "write": 0, "read": 0}

    def count(name: str) -> None:
        calls[name] += 1

    def loss(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            jax.debug.callback(lambda: count("step"))
            return jnp.sin(c), None

        return transform.scan(step, x, None, 200, checkpoint=far)[0].sum()

    for name in ("write", "read"):
        of_file = getattr(files, name)
        monkeypatch.setattr(files, name, lambda *args, name=name, f=of_file: (count(name), f(*args))[1])
    far = budget(places, folder)
    jax.block_until_ready(jax.jit(jax.grad(loss))(ARGS[0]))
    jax.effects_barrier()
    choice = far.choices[-1]
    assert isinstance(choice.carries, int)
    plan = st.schedule(200, choice.carries, far=choice.host + choice.disk)
    assert calls == {"step": choice.evaluations, "write": choice.disk, "read": choice.disk}
    assert (choice.evaluations, choice.host + choice.disk) == (plan.evaluations, plan.writes)
    text = str(choice)
    assert (f"{choice.host} more in host memory" in text) == bool(choice.host)
    assert (f"{choice.disk} more on disk" in text) == bool(choice.disk)


def test_what_needs_nothing_far_away_puts_nothing_there(folder: pathlib.Path) -> None:
    far = budget("disk=100", folder)
    jax.grad(program)(*ARGS, far, 12)
    assert (far.choices[-1].host, far.choices[-1].disk) == (0, 0)


@pytest.mark.parametrize("max_steps", [None, 400])
@pytest.mark.parametrize("places", ["host=100", "disk=100", "host=4", "disk=3", "host=3 disk=6"])
def test_gradients_for_every_length_from_one_program(places: str, max_steps: int | None, folder: pathlib.Path) -> None:
    """Lengths for which the room suffices, is used to the last carry, and is used up several times."""
    far, x = budget(places, folder), ARGS[0]
    gradient = jax.jit(jax.grad(lambda x, n: loop(x, n, far, max_steps).sum()))
    expected = jax.jit(jax.grad(lambda x, n: reference(x, n).sum()), static_argnums=1)
    for n in (0, 1, 5, 6, 7, 24, 33, 301):
        np.testing.assert_allclose(gradient(x, n), expected(x, n), rtol=1e-4, atol=1e-6)
    assert far.choices[-1].host or far.choices[-1].disk


@pytest.mark.parametrize("places", ["host=100", "disk=100", "host=3 disk=100"])
def test_in_all_kinds_of_loops_with_states(places: str, folder: pathlib.Path) -> None:
    u, key = State(jnp.zeros(SIZE), name="u"), st.RandomState(0)

    def step(*_: Any) -> None:
        u.value = jnp.sin(u.value) + 0.01 * jax.random.normal(key.split(), (SIZE,))

    def running(kind: str, checkpoint: Any) -> None:
        if kind == "for_loop":
            transform.for_loop(step, length=60, checkpoint=checkpoint)
        elif kind == "fori_loop":
            transform.fori_loop(0, 60, step, None, checkpoint=checkpoint)
        else:
            advance = lambda i: (step(), i + 1)[1]
            transform.while_loop(lambda i: i < 60, advance, 0, checkpoint=checkpoint)

    def loss(x: Any, kind: str, checkpoint: Any) -> Any:
        u.value, key.value = x, jax.random.key(1)
        running(kind, checkpoint)
        return u.value.sum()

    for kind in ("for_loop", "fori_loop", "while_loop"):
        found = [
            transform.jit(transform.value_and_grad(loss), static_argnums=(1, 2))(ARGS[0], kind, checkpoint)
            for checkpoint in (3, budget(places, folder))
        ]
        jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.parametrize("places", PLACES[:3])
def test_under_vmap_every_lane_is_in_the_same_transfer(places: str, folder: pathlib.Path) -> None:
    far, of_six, of_one = (budget(places + "0", folder, lanes) for lanes in (3, 6, 1))
    xs, rs = jnp.stack([ARGS[0], ARGS[0] + 1, ARGS[0] * 2]), jnp.stack([ARGS[1]] * 3) * 0.9
    in_both = places == PLACES[2]
    for axes in ((0, 0), (0, None), (None, 0)) if in_both else ((0, 0),):
        args = [v if axis == 0 else v[0] for v, axis in zip((xs, rs), axes, strict=True)]
        for wrap in (
            lambda f, axes=axes: jax.vmap(jax.grad(f, (0, 1)), axes),
            lambda f, axes=axes: jax.grad(lambda *a: jax.vmap(f, axes)(*a).sum(), (0, 1)),
        ):
            found = [jax.jit(wrap(lambda x, r, c=c: program(x, r, c)))(*args) for c in (K, far)]
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), *found)
    if in_both:
        lanes = xs[None] * jnp.ones((2, 1, 1))
        twice = lambda c: jax.jit(jax.vmap(jax.vmap(jax.grad(lambda x: program(x, ARGS[1], c)))))(lanes)
        np.testing.assert_allclose(twice(of_six), twice(K), rtol=1e-5)
        pulled = lambda c: jax.jit(jax.jacrev(lambda x: jnp.stack([program(x, ARGS[1], c), x.sum()])))(ARGS[0])
        np.testing.assert_allclose(pulled(of_one), pulled(K), rtol=1e-5)


@pytest.mark.parametrize("places", ["host=10", "disk=10", "host=2 disk=10"])
def test_lanes_of_different_lengths(places: str, folder: pathlib.Path) -> None:
    far, xs, ns = budget(places + "0", folder, 3), jnp.stack([ARGS[0]] * 3), jnp.array([3, 40, 17])
    gradient = lambda c: jax.jit(jax.vmap(jax.grad(lambda x, n: loop(x, n, c).sum())))(xs, ns)
    np.testing.assert_allclose(gradient(far), gradient(K), rtol=1e-5)


@pytest.mark.parametrize("places", PLACES[:3])
def test_forward_mode_and_second_derivatives(places: str, folder: pathlib.Path) -> None:
    far, w = budget(places, folder), jnp.float32(0.9)
    f = lambda c: lambda w: program(ARGS[0] * w, ARGS[1], c, 30)
    g = lambda c: lambda w: loop(ARGS[0] * w, 30, c).sum()
    bounded = lambda c: lambda w: loop(ARGS[0] * w, 30, c, 40).sum()
    every = ((f, jax.jacrev), (f, jax.jacfwd), (g, jax.jacfwd), (bounded, jax.jacrev))
    for fun, outer in every if places == PLACES[2] else every[:1]:
        both = lambda c, fun=fun, outer=outer: lambda w: (jax.jvp(fun(c), (w,), (w,)), outer(jax.grad(fun(c)))(w))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), jax.jit(both(far))(w), jax.jit(both(K))(w)
        )


def test_lanes_make_no_gathers_and_scatters_of_host_memory() -> None:
    far = budget("host=100", pathlib.Path(), 3)
    gradient = jax.vmap(jax.grad(lambda x: program(x, ARGS[1], far)))
    lines = str(jax.make_jaxpr(gradient)(jnp.ones((3, SIZE)))).splitlines()
    assert not [line for line in lines if "<host>" in line and ("gather" in line or "scatter" in line)]


def temporary(checkpoint: Any, n: int, size: int = 20_000) -> int:
    def loss(x: Any) -> Any:
        step = lambda c, _: (0.99 * c + 0.01 * jnp.sin(c), None)
        return transform.scan(step, x, None, n, checkpoint=checkpoint)[0].sum()

    compiled = jax.jit(jax.grad(loss)).lower(jnp.ones(size)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_device_memory_is_that_of_the_carries_near_for_every_length(folder: pathlib.Path) -> None:
    carry = 80_000
    far = st.MemoryBudget(16 * carry, disk="1GB", folder=folder)
    short, long = (temporary(far, n) for n in (400, 40_000))
    assert far.choices[0].carries == far.choices[1].carries and far.choices[1].disk > 20 * far.choices[0].disk
    assert long <= short + carry / 10
    assert short <= 1.03 * 16 * carry


def test_host_memory_that_is_the_devices_own_saves_nothing() -> None:
    text = "scan: host=19800 saves nothing, as the memory of the CPU is that of the host"
    with pytest.warns(st.policies.PolicyWarning, match=text) as found:
        jax.grad(program)(*ARGS, budget("host=99", pathlib.Path()))  # of no other test: it is said once per program
    assert found[0].filename == __file__


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"disk": "1GB"}, ValueError, "disk='1GB' needs a folder on a disk"),
        ({"folder": "/scratch"}, ValueError, "folder='/scratch'` needs a size. Write `disk=` with `folder=`"),
        ({"host": "1 XB"}, ValueError, "is not a size"),
        ({"disk": -1, "folder": "/scratch"}, ValueError, "a size must not be negative, as -1 is"),
        ({"host": [1]}, TypeError, "a number of bytes or a text such as"),
        ({"disk": "1GB", "folder": 3}, TypeError, "must be a path as text, not 3"),
        ({"disk": "1GB", "folder": b"/scratch"}, TypeError, "must be a path as text"),
    ],
)
def test_what_is_no_place_is_refused(arguments: dict[str, Any], error: type, text: str) -> None:
    with pytest.raises(error) as info:
        st.MemoryBudget("2GiB", **arguments)
    assert text in str(info.value)


def test_places_are_part_of_the_value_of_a_budget(tmp_path: pathlib.Path) -> None:
    make = lambda **places: st.MemoryBudget("2GiB", **places)
    assert make(host="1GiB") == make(host=2**30) != make() != make(host="2GiB")
    disk = make(disk="1GB", folder=tmp_path)
    assert disk == make(disk=10**9, folder=str(tmp_path)) and hash(disk) == hash(make(disk=10**9, folder=str(tmp_path)))
    assert disk != make(disk="1GB", folder=tmp_path / "other")
    assert repr(disk) == f"MemoryBudget('2GiB', disk='1GB', folder={str(tmp_path)!r})"


def test_as_a_policy_of_a_function_the_loops_in_it_share_it(folder: pathlib.Path) -> None:
    def f(x: Any, r: Any) -> Any:
        x = jax.lax.scan(lambda c, _: (jnp.sin(c * r), None), x, None, 200)[0]
        inner = lambda c: jax.lax.scan(lambda d, _: (jnp.cos(d), None), c, None, 3)[0]
        return jax.lax.scan(lambda c, _: (jnp.sin(inner(c)), None), x, None, 200)[0].sum()

    far = st.MemoryBudget(2 * DEVICE, disk=200 * CARRY, folder=folder)
    gradient = transform.grad(transform.checkpoint(f, policy=far), (0, 1))
    for run in (gradient, transform.jit(gradient)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), run(*ARGS), jax.grad(f, (0, 1))(*ARGS))
    chosen = [choice for choice in far.choices if choice.n == 200]
    assert chosen and all(choice.budget == DEVICE and 0 < choice.disk <= 100 for choice in chosen)


def test_a_loop_that_jax_cannot_reverse_has_its_carries_far_away_too(folder: pathlib.Path) -> None:
    f = lambda x: jax.lax.while_loop(lambda c: c[0] < 100, lambda c: (c[0] + 1, jnp.sin(c[1]) * 1.01), (0, x))[1].sum()
    far = budget("disk=100", folder)
    found = transform.grad(transform.checkpoint(f, policy=far))(ARGS[0])
    expected = jax.grad(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * 1.01, None), x, None, 100)[0].sum())(ARGS[0])
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert far.choices[-1].disk
