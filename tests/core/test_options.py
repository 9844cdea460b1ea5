"""An option that is changed between two calls of one function gives the program of a fresh function.

Each row of the table is an option of a transform, or a field of an object of this package, with two values: mostly its
default and another one. One function is traced with the first value, with the second, and with the first again. Its
programs must be those of functions that have never been traced.
"""

from __future__ import annotations

import inspect
import pathlib
import re
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify

import statetransform as st
from statetransform import RandomState, State, policies
from statetransform import transform as T

MESH = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
OTHER_MESH = jax.make_mesh((1, 1), ("i", "j"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
FOLDER = pathlib.Path(__file__).parent
SHARDING, P = jax.sharding.NamedSharding(MESH, jax.P()), jax.P
SAVEABLE = jax.checkpoint_policies.everything_saveable
DERIVATIVES: tuple[Any, ...] = (T.grad, T.value_and_grad, T.jacfwd, T.jacrev, T.hessian)
w, n, key, x = State(jnp.ones(4), name="w"), State(0, name="n"), RandomState(0, name="key"), jnp.ones(4)


def sines(x: Any) -> Any:
    return jnp.sin(jnp.sin(w.value * x))


def times(x: Any, n: Any) -> Any:
    return sines(x) * n


def loss(x: Any) -> Any:
    return sines(x).sum()


def both(x: Any) -> Any:
    return sines(x).sum(), sines(x).sum()


def lane(x: Any) -> Any:
    return jnp.sin(x) + w.value.sum() + jax.random.uniform(key.split())


def lanes(x: Any) -> Any:
    return lane(x) * jnp.ones(2)


def read(x: Any) -> Any:
    return sines(x) * w.value.size


def step(carry: Any, x: Any) -> Any:
    return jnp.sin(w.value * carry), carry.sum() * (1.0 if x is None else x)


def undone(carry: Any, x: Any) -> Any:
    return jnp.arcsin(carry) / w.value


def undone_twice(carry: Any, x: Any) -> Any:
    return 2 * jnp.arcsin(carry) / w.value


def shrink(x: Any) -> Any:
    return jnp.sin(w.value * x)


def checked(x: Any) -> Any:
    checkify.check(x[0] > 0, "x must be positive")
    return jnp.log(sines(x))


def count(x: Any) -> Any:
    n.value = n.value + 1
    return x * n.value


def advance(x: Any, y: Any) -> Any:
    w.value = sines(x)
    return x + 1


def looped(x: Any) -> Any:
    return T.scan(step, x, None, length=100)[0].sum()


def custom(kind: Any, *rules: Any, **options: Any) -> Callable[[Any], Any]:
    made = kind(sines)
    (made.defvjp if kind is T.custom_vjp else made.defjvp)(*rules, **options)
    return made


def forward(x: Any) -> Any:
    return sines(x), None


def backward(_: Any, ct: Any) -> Any:
    return (2 * ct,)


def backward_of_three(_: Any, ct: Any) -> Any:
    return (3 * ct,)


def scanned(f: Any, **options: Any) -> Callable[[Any], Any]:
    return T.grad(lambda x: jax.tree.reduce(jnp.add, jax.tree.map(jnp.sum, T.scan(f, x, **options))))


def ran_while(f: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda x: T.while_loop(lambda x: x[0] > 0.1, f, x, **options)


def tangent(primals: Any, tangents: Any) -> Any:
    return sines(*primals), 2 * tangents[0]


def tangent_of_three(primals: Any, tangents: Any) -> Any:
    return sines(*primals), 3 * tangents[0]


def sharded_lane(x: Any) -> Any:
    return jax.lax.with_sharding_constraint(sines(x * jnp.ones(4)), SHARDING)


def at(axis: Any) -> Any:
    return jax.lax.axis_index("i") if axis else 0


Use = Callable[[Any, Any], Callable[[Any], Any]]  # gives a function of an array from one of the above and a value
Row = tuple[Callable[..., Any], Use, Any, Any]
ROWS: dict[str, Row] = {
    "checkpoint policy": (sines, lambda f, o: T.checkpoint(f, policy=o), None, SAVEABLE),
    "checkpoint policy of ours": (sines, lambda f, o: T.checkpoint(f, policy=o), None, policies.save_larger_than(1)),
    "checkpoint policy of two": (
        sines, lambda f, o: T.checkpoint(f, policy=policies.any_of(SAVEABLE, *o)), (), (policies.dots_saveable,)),
    "checkpoint budget": (
        looped, lambda f, o: T.grad(T.checkpoint(f, policy=o)), None, policies.fit("800B", compile=False)),
    "checkpoint loops": (looped, lambda f, o: T.grad(T.checkpoint(f, policy=o)), None, policies.loops(2)),
    "checkpoint prevent_cse": (sines, lambda f, o: T.checkpoint(f, prevent_cse=o), True, False),
    "checkpoint static_argnums": (times, lambda f, o: lambda x: T.checkpoint(f, static_argnums=o)(x, 2), (), 1),
    "checkpoint static_argnames": (times, lambda f, o: lambda x: T.checkpoint(f, static_argnames=o)(x, n=2), (), "n"),
    "checkpoint states": (count, lambda f, o: T.checkpoint(f, states=o), None, RandomState),
    "jit static_argnums": (times, lambda f, o: lambda x: T.jit(f, static_argnums=o)(x, 2), None, 1),
    "jit static_argnames": (times, lambda f, o: lambda x: T.jit(f, static_argnames=o)(x, n=2), None, "n"),
    "jit keep_unused": (sines, lambda f, o: T.jit(f, keep_unused=o), False, True),
    "jit donate_argnums": (sines, lambda f, o: T.jit(f, donate_argnums=o), None, 0),
    "jit donate_argnames": (sines, lambda f, o: T.jit(f, donate_argnames=o), None, "x"),
    "jit out_shardings": (sines, lambda f, o: T.jit(f, out_shardings=o), None, SHARDING),
    "jit in_shardings": (sines, lambda f, o: T.jit(f, in_shardings=o), None, SHARDING),
    "jit state_shardings": (sines, lambda f, o: T.jit(f, state_shardings=o), None, {w: SHARDING}),
    "vjp states": (sines, lambda f, o: lambda x: T.vjp(f, x, states=o)[1](x), None, w),
    "linearize states": (
        sines, lambda f, o: lambda x: T.linearize(f, x, states=o)[1](*[x] * (1 if o is None else 2)), None, w),
    "jvp states": (
        sines, lambda f, o: lambda x: T.jvp(f, (x,), (x,) if o is None else (x, x), states=o), None, w),
    "vmap in_axes": (lane, lambda f, o: T.vmap(f, in_axes=o, axis_size=4), 0, None),
    "vmap out_axes": (lanes, lambda f, o: T.vmap(f, out_axes=o), 0, 1),
    "vmap axis_size": (lane, lambda f, o: T.vmap(f, in_axes=None, axis_size=o), 4, 5),
    "vmap axis_name": (lane, lambda f, o: T.vmap(lambda x: f(x) + at(o), axis_name=o), None, "i"),
    "vmap spmd_axis_name": (sharded_lane, lambda f, o: T.vmap(f, spmd_axis_name=o), None, "i"),
    "vmap state_axes": (lane, lambda f, o: T.vmap(f, state_axes=o), None, {w: 0}),
    "vmap split_rngs": (lane, lambda f, o: T.vmap(f, split_rngs=o), True, False),
    "scan xs": (step, lambda f, o: scanned(f, xs=o, length=4), None, jnp.ones(4)),
    "scan length": (step, lambda f, o: scanned(f, length=o), 4, 5),
    "scan reverse": (step, lambda f, o: scanned(f, length=4, reverse=o), False, True),
    "scan unroll": (step, lambda f, o: scanned(f, length=4, unroll=o), 1, 2),
    "scan checkpoint": (step, lambda f, o: scanned(f, length=9, checkpoint=o), None, "step"),
    "scan number": (step, lambda f, o: scanned(f, length=9, checkpoint=o), None, 2),
    "scan budget": (step, lambda f, o: scanned(f, length=40, checkpoint=o), None, st.MemoryBudget("200B")),
    "scan reversible": (
        step, lambda f, o: scanned(f, length=9, checkpoint=o and st.Reversible(o)), None, undone),
    "scan inverse": (step, lambda f, o: scanned(f, length=9, checkpoint=st.Reversible(o)), undone, undone_twice),
    "scan every": (step, lambda f, o: scanned(f, length=9, checkpoint=st.Reversible(undone, every=o)), None, 3),
    "scan progress": (step, lambda f, o: scanned(f, length=4, progress=o), None, True),
    "scan disk": (
        step, lambda f, o: scanned(f, length=60, checkpoint=st.MemoryBudget("200B", disk=o, folder=o and FOLDER)),
        None, "1MB"),
    "for_loop length": (shrink, lambda f, o: lambda x: T.for_loop(lambda: f(x), length=o), 3, 4),
    "for_loop reverse": (shrink, lambda f, o: lambda x: T.for_loop(f, x, reverse=o), False, True),
    "for_loop unroll": (shrink, lambda f, o: lambda x: T.for_loop(f, x, unroll=o), 1, 2),
    "for_loop checkpoint": (
        shrink, lambda f, o: T.grad(lambda x: T.for_loop(f, x, checkpoint=o).sum()), None, "step"),
    "for_loop progress": (sines, lambda f, o: lambda x: T.for_loop(f, x, progress=o), None, True),
    "fori_loop progress": (
        sines, lambda f, o: lambda x: T.fori_loop(0, 9, lambda _, x: f(x), x, progress=o), None, True),
    "fori_loop checkpoint": (
        shrink, lambda f, o: T.grad(lambda x: T.fori_loop(0, 9, lambda _, x: f(x), x, checkpoint=o).sum()), None, 2),
    "fori_loop unroll": (shrink, lambda f, o: lambda x: T.fori_loop(0, 9, lambda _, x: f(x), x, unroll=o), None, 2),
    "while_loop max_steps": (shrink, lambda f, o: ran_while(f, max_steps=o), None, 5),
    "while_loop checkpoint": (
        shrink, lambda f, o: ran_while(f, checkpoint=o), None, 2),
    "while_loop progress": (sines, lambda f, o: ran_while(f, progress=o), None, True),
    "map checkpoint": (sines, lambda f, o: lambda x: T.map(f, x, checkpoint=o), None, "step"),
    "map progress": (sines, lambda f, o: lambda x: T.map(f, x, progress=o), None, True),
    "map batch_size": (sines, lambda f, o: lambda x: T.map(f, x, batch_size=o), None, 2),
    "associative_scan reverse": (
        read, lambda f, o: lambda x: T.associative_scan(lambda a, b: a + b * w.value[0], x, reverse=o), False, True),
    "associative_scan axis": (
        read, lambda f, o: lambda x: T.associative_scan(lambda a, b: a + b * w.value[0], jnp.eye(4) * x, axis=o), 0, 1),
    "custom_vjp backward": (
        sines, lambda f, o: T.grad(lambda x: custom(T.custom_vjp, forward, o)(x).sum()), backward, backward_of_three),
    "custom_jvp rule": (
        sines, lambda f, o: T.grad(lambda x: custom(T.custom_jvp, o)(x).sum()), tangent, tangent_of_three),
    "custom_jvp nondiff_argnums": (
        times, lambda f, o: nondiff_jvp(f, o), (), (1,)),
    "custom_vjp nondiff_argnums": (times, lambda f, o: nondiff(T.custom_vjp, f, o), (), (1,)),
    "shard_map state_specs": (sines, lambda f, o: sharded(f, state_specs=o), None, {w: P("i")}),
    "shard_map out_specs": (sines, lambda f, o: sharded(f, out_specs=o, check_vma=False), P("i"), P()),
    "shard_map in_specs": (sines, lambda f, o: sharded(f, in_specs=o), P("i"), P()),
    "shard_map axis_names": (sines, lambda f, o: sharded(f, mesh=OTHER_MESH, axis_names={"i", o}), "i", "j"),
    "shard_map mesh": (sines, lambda f, o: sharded(f, mesh=o), MESH, OTHER_MESH),
    "shard_map check_vma": (sines, lambda f, o: sharded(f, check_vma=o), True, False),
    "checkify errors": (
        checked, lambda f, o: lambda x: T.checkify(f, errors=o)(x)[1], checkify.user_checks, checkify.all_checks),
    "named_call name": (sines, lambda f, o: T.named_call(f, name=o), None, "other"),
    **{f"{d.__name__} states": (loss, lambda f, o, d=d: d(f, states=o), None, w) for d in DERIVATIVES},
    **{
        f"{d.__name__} argnums": (
            times, lambda f, o, d=d: lambda x: d(lambda *args: f(*args).sum(), argnums=o)(x, 2.0), None, 1)
        for d in DERIVATIVES
    },
    **{
        f"{d.__name__} has_aux": (
            both, lambda f, o, d=d: d(f if o else lambda x: f(x)[0], has_aux=o), False, True)
        for d in DERIVATIVES
    },
}  # fmt: skip


def nondiff(kind: Any, f: Any, argnums: Any) -> Callable[[Any], Any]:
    made = kind(f, nondiff_argnums=argnums)
    made.defvjp(lambda x, n: (f(x, n), None), lambda *args: (args[0] * args[-1],) if argnums else (args[-1], None))
    return T.grad(lambda x: made(x, 2.0).sum())


def nondiff_jvp(f: Any, argnums: Any) -> Callable[[Any], Any]:
    made = T.custom_jvp(f, nondiff_argnums=argnums)
    made.defjvp(lambda *args: (f(x, 2.0), args[-1][0] * (3 if argnums else 4)))
    return T.grad(lambda x: made(x, 2.0).sum())


def sharded(f: Any, **options: Any) -> Callable[[Any], Any]:
    return T.shard_map(f, **{"mesh": MESH, "in_specs": P("i"), "out_specs": P("i")} | options)


def total(tree: Any) -> Any:
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))


PLACES: dict[str, Callable[[Callable[[Any], Any], Any], Any]] = {
    "alone": lambda g, x: g(x),
    "jit": lambda g, x: T.jit(g)(x),
    "scan": lambda g, x: T.scan(lambda c, _: (c, total(g(c))), x, None, length=3)[1],
    "cond": lambda g, x: T.cond(x[0] > 0, g, g, x),
}


def fresh(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The function with code of its own, which nothing has been traced for."""
    return types.FunctionType(fun.__code__.replace(), fun.__globals__, fun.__name__, fun.__defaults__, fun.__closure__)


def shown(fun: Callable[[Any], Any]) -> str:
    """The program of a function, without addresses, or the error that it gets."""
    try:
        text = T.make_jaxpr(fun)(x).jaxpr.pretty_print(name_stack=True)
    except st.StateTransformError as error:
        return str(error)
    text = re.sub(r"(select_n \S+) \d+:", r"\1 n:", text)  # JAX 0.10 counts the checks of `checkify`
    return re.sub(r"0x[0-9a-f]+", "", text)


def programs(row: Row, place: str, values: list[Any], is_shared: bool) -> list[str]:
    """The programs of a row in a place, one after the other: of one function, or of a fresh one each."""
    fun, use, *_ = row
    outer = lambda x: PLACES[place](made, x)
    found = []
    for value in values:
        made = use(fun if is_shared else fresh(fun), value)
        found.append(shown(outer if is_shared else fresh(outer)))
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("option", ROWS)
def test_an_option_that_is_changed_gives_the_program_of_a_fresh_function(option: str, place: str) -> None:
    if option == "checkify errors" and jax.__version_info__ < (0, 11):
        pytest.skip("JAX 0.10 gives each check another number in each trace")
    row = ROWS[option]
    one, two = programs(row, place, [row[2], row[3]], is_shared=False)
    assert one != two, "the row says nothing: its values give the same program"
    assert programs(row, place, [row[2], row[3], row[2]], is_shared=True) == [one, two, one]


#: Options of compiled functions that call nothing else, which a function around them knows nothing of.
OUTERMOST = {
    "donate_states": (False, True),
    "donate_argnums": (None, 0),
    "keep_unused": (False, True),
    "state_shardings": (None, {w: SHARDING}),
}


@pytest.mark.parametrize("option", OUTERMOST)
def test_an_option_of_jit_that_is_changed_gives_the_program_of_a_fresh_function(option: str) -> None:
    lowered = lambda fun, value: T.jit(fun, **{option: value}).lower(x, x).as_text()
    one, two = [lowered(fresh(advance), value) for value in OUTERMOST[option]]
    assert one != two, "the row says nothing: its values give the same program"
    assert [lowered(advance, value) for value in (*OUTERMOST[option], OUTERMOST[option][0])] == [one, two, one]


#: What has no row: the arguments of the function-like transforms, and options that change no program.
NO_ROW = {
    "checkpoint": {"concrete", "methods"},  # an error; a class
    "jit": {"inline", "device", "backend", "compiler_options"},  # for the compiler
    "grad": {"holomorphic", "allow_int", "reduce_axes"},  # checks
    "value_and_grad": {"holomorphic", "allow_int", "reduce_axes"},
    "jacfwd": {"holomorphic"},
    "jacrev": {"holomorphic", "allow_int"},
    "hessian": {"holomorphic"},
    "vmap": {"sum_match"},
    "scan": {"_split_transpose"},  # of no effect in JAX any more
    "vjp": {"primals", "reduce_axes", "saveable_args", "in_nzs", "has_aux"},
    "linearize": {"primals", "in_nzs", "has_aux"},
    "jvp": {"primals", "tangents", "has_aux"},
    "make_jaxpr": {"static_argnums", "axis_env", "return_shape"},  # gives no arrays
    "functionalize": {"static_argnums", "static_argnames"},
    "custom_vjp": {"nondiff_argnames"},  # the same as numbers
    "custom_jvp": {"nondiff_argnames"},
}
FUNCTIONS = {
    "fun",
    "f",
    "fn",
    "init",
    "init_val",
    "xs",
    "elems",
    "lower",
    "upper",
    "operands",
    "operand",
    "pred",
    "index",
}
FUNCTIONS |= {"cond_fun", "body_fun", "true_fun", "false_fun", "branches", "jax_transform", "args", "kwargs", "x"}


def test_each_option_of_each_transform_has_a_row() -> None:
    for name in set(T.__all__) - {"Functionalized", "remat", "checkpoint_name", "lift", "eval_shape", "discard_writes"}:
        parameters = {*inspect.signature(getattr(T, name)).parameters} - FUNCTIONS - NO_ROW.get(name, set())
        with_rows = {row.split()[1] for row in ROWS if row.split()[0] == name} | (
            {*OUTERMOST} if name == "jit" else set()
        )
        assert parameters <= with_rows, f"{name} has options without a row"
