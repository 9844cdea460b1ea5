"""What is not public in JAX: each use, why it is needed, and what would make it needless.

These tests fail when JAX offers something better, or when what is used no longer does what the package needs. Then
`statetransform/_jax` is the one place to change: `test_private_names.py` keeps such uses out of all others.
"""

from __future__ import annotations

import pathlib
import re

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.extend import linear_util, source_info_util
from jax.extend.core import primitives

import statetransform
from statetransform import _jax

from ..core.compiling import python_calls

ROOT = pathlib.Path(statetransform.__file__).parent
X = jnp.linspace(0.1, 1.0, 4)


def equations(fun, *args):
    return jax.make_jaxpr(fun)(*args).jaxpr.eqns


# What is used, and what would make it needless.


@pytest.mark.parametrize(
    "name", ["Tracer", "eval_jaxpr", "ArrayImpl", "trace_context", "ShapedArray", "primitive_batchers"]
)
def test_no_documented_module_exports_it_yet(name: str) -> None:
    """Otherwise take it from there, and in place of `concrete_array`, `ContextDict`, `define_batching`"""
    assert [module.__name__ for module in (jax, jex) if hasattr(module, name)] == []


def test_the_trace_context_is_exported_and_one_for_all_threads_at_top_level() -> None:
    assert _jax.trace_state() == _jax.TOP_LEVEL
    assert _jax.is_top_level()
    assert jax.jit(lambda x: x + _jax.is_top_level())(0) == 0


def test_type_checkers_do_not_see_the_setting_that_disables_jit() -> None:
    """Otherwise `is_jit_disabled` needs no `type: ignore`."""
    assert "jax_disable_jit" not in getattr(type(jax.config), "__annotations__", {})
    with jax.disable_jit():
        assert _jax.is_jit_disabled()
    assert not _jax.is_jit_disabled()


def test_the_type_of_a_concrete_array_is_no_public_name() -> None:
    assert _jax.concrete_array() is not jax.Array
    assert type(jnp.ones(3)) is _jax.concrete_array()


def test_the_caches_of_linear_util_are_keyed_by_the_whole_context() -> None:
    """There is no public key of the context: `ContextDict` takes it from these caches."""
    assert hasattr(linear_util, "cache")
    store = _jax.ContextDict()
    store.current()["here"] = 1
    with jax.enable_x64(not jax.config.jax_enable_x64):
        assert store.current() == {}
    with jax.default_matmul_precision("highest"):
        assert store.current() == {}
    assert store.current() == {"here": 1}


def test_no_public_context_keeps_programs_out_of_the_folder_for_compiled_ones() -> None:
    """Otherwise `without_cache` takes it, where one for a thread is there."""
    assert not hasattr(jax, "persistent_cache_min_compile_time_secs")
    before = jax.config.jax_persistent_cache_min_compile_time_secs  # type: ignore[attr-defined]
    with _jax.without_cache():
        assert _jax.programs._seconds_to_cache.value == float("inf")
    assert _jax.programs._seconds_to_cache.value == before


def test_find_top_trace_does_not_tell_whose_tracer_a_value_is() -> None:
    """Otherwise use it in the place of `is_tracer_of`."""
    seen = []

    def body(x):
        with _jax.take_current_trace() as trace:
            pass
        with _jax.set_current_trace(trace):
            unbatched = jnp.sin(1.0)
            seen.append((type(jex.find_top_trace([1.0])), type(jex.find_top_trace([x])), type(trace)))
            seen.append((_jax.is_tracer_of(x, trace), _jax.is_tracer_of(unbatched, trace)))
        return x

    jax.vmap(body)(X)
    assert len(set(seen[0])) == 1
    assert seen[1] == (True, False)


@pytest.mark.parametrize("argnum", [0, 1])
def test_no_public_function_says_whether_a_rule_runs_at_once(argnum: int) -> None:
    """JAX asks trace by trace: what `runs_rule_directly` foresees is what happens then."""
    runs: list[str] = []
    square = jax.custom_vjp(lambda x: (runs.append("function"), x * x)[1])
    square.defvjp(lambda x: (runs.append("rule"), (x * x, x))[1], lambda x, ct: (ct * x,))
    seen = []

    def f(x, y):
        runs.clear()
        foreseen = _jax.runs_rule_directly("custom_vjp", x)
        out = (square(x) * y).sum()
        seen.append((foreseen, runs == ["rule"]))
        return out

    for g in (f, lambda x, y: jax.vmap(f)(x, y).sum(), jax.jit(f)):
        jax.make_jaxpr(jax.grad(g, argnum))(X, X)
    assert seen == [(argnum == 0,) * 2, (argnum == 0,) * 2, (False, False)]


def inner(x):
    return jnp.where(x > 0, 2 * jnp.sin(x), 1.0) + jnp.float32(3).astype(x.dtype) * jnp.arange(4)


def test_jax_takes_no_equations_in_with_their_source() -> None:
    """Otherwise `splice` is binding a `jit` with `inline=True`; from 0.12 on that one inlines later only."""
    (first, *_) = equations(lambda x: jax.jit(inner, inline=True)(x), X)
    (same, *_) = equations(inner, X)
    source = lambda eqn: source_info_util.summarize(eqn.source_info)
    assert first.primitive.name == "jit" or source(first) != source(same)


def test_equations_that_are_taken_in_are_those_that_binding_gives() -> None:
    """Or else traces take equations in another way: see `splice` and `bind_in`."""
    closed = jax.make_jaxpr(inner)(X)
    taken: list[bool] = []

    def again(run, x):
        with _jax.take_current_trace() as trace:
            taken.append(hasattr(trace, "emit_eqn") and hasattr(trace, "to_jaxpr_tracer"))
        return run(_jax.opened(closed), closed.consts, x)[0]

    texts = [
        jax.jit(lambda x, run=run: again(run, x)).lower(X).as_text(debug_info=True)
        for run in (_jax.splice, _jax.eval_jaxpr)
    ]
    assert texts[0] == texts[1]
    assert taken == [True, True]
    assert jnp.array_equal(again(_jax.splice, X), inner(X))  # where nothing is staged
    scoped = jax.named_scope("scope")(lambda x: again(_jax.splice, x))
    assert "scope" in jax.jit(scoped).lower(X).as_text(debug_info=True)


def test_typeof_does_not_take_an_abstract_value() -> None:
    """Otherwise `_jax.typeof` is `jax.typeof`."""
    aval = equations(jnp.sin, 1.0)[0].outvars[0].aval
    assert _jax.typeof(aval) is aval
    with pytest.raises(TypeError):
        jax.typeof(aval)


def test_a_jaxpr_with_more_inputs_forgets_the_names_of_all() -> None:
    """Otherwise `close_over_inputs` need not touch the debug info, nor `without_constvars` trace anew."""
    closed = jax.make_jaxpr(lambda x: jnp.sin(x))(1.0)
    other = jax.make_jaxpr(lambda y: y)(1.0).jaxpr
    assert closed.jaxpr.debug_info.arg_names == ("x",)
    assert closed.jaxpr.replace(invars=[*closed.jaxpr.invars, *other.invars]).debug_info.arg_names is None
    both, _ = _jax.close_over_inputs(closed, None, [(closed.jaxpr.invars[0].aval,)], ["y"])
    assert both.debug_info.arg_names == ("x", "y")
    assert len(both.invars) == 2  # though nothing uses the second one


def test_the_oldest_jax_that_is_supported_has_two_classes_of_jaxprs() -> None:
    """From 0.11 on there is one: `Jaxpr`, `opened`, `consts_of` and `without_constvars` can then be simpler."""
    pyproject = (pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text()  # also beside an installed package
    assert re.search(r'"jax>=0\.10"', pyproject)
    closed = jax.make_jaxpr(lambda x: x * X)(X)
    assert _jax.is_jaxpr(closed)
    assert _jax.is_jaxpr(_jax.opened(closed))
    assert len(_jax.consts_of(closed)) == 1
    body, consts = _jax.without_constvars(closed)
    assert (len(body.invars), len(body.constvars), len(consts)) == (2, 0, 1)
    assert _jax.function_of(body)[0] == _jax.function_of(closed)[0] == "<lambda>"


def test_with_remat3_a_name_is_another_primitive(remat3: None) -> None:
    """Otherwise `given_name` need not look at the names of private classes, and `bind_name` is `checkpoint_name`."""
    (eqn,) = equations(lambda x: checkpoint_name(x, "a"), X)
    assert eqn.primitive is not primitives.name_p
    assert _jax.given_name(eqn) == "a"
    (eqn,) = equations(lambda x: _jax.bind_name(x, "a"), X)
    assert eqn.primitive is primitives.name_p
    assert _jax.given_name(eqn) == "a"


def test_with_remat3_a_checkpoint_is_another_primitive(remat3: None) -> None:
    """Otherwise `is_remat` and `remat_params` are about one primitive, and `bind_remat` is `jax.checkpoint`."""
    (eqn,) = equations(jax.checkpoint(lambda x: jnp.sin(x)), X)
    assert eqn.primitive is not primitives.remat_p
    assert _jax.is_remat(eqn)
    assert _jax.is_jaxpr(_jax.remat_params(eqn)[0])
    body = _jax.opened(jax.make_jaxpr(lambda x: jnp.sin(x))(X))
    (eqn,) = equations(lambda x: _jax.bind_remat(body, [x], True, None), X)
    assert eqn.primitive is primitives.remat_p
    assert _jax.remat_params(eqn)[1] is None


def test_a_policy_of_jax_has_no_public_list_of_its_names() -> None:
    """Otherwise ask it in the place of `names_held`."""
    policy = jax.checkpoint_policies.save_only_these_names("a", "b")
    assert not hasattr(policy, "names")
    assert _jax.names_held(policy) == {"a", "b"}
    assert _jax.names_held(jax.checkpoint_policies.dots_saveable) == frozenset()


def test_the_parameters_of_an_equation_are_not_those_of_bind() -> None:
    """Otherwise `_jax.bind` is `primitive.bind`."""
    relu = jax.custom_jvp(lambda x: jnp.maximum(x, 0))
    relu.defjvp(lambda primals, tangents: (relu(*primals), tangents[0]))
    (eqn,) = equations(relu, X)
    with pytest.raises((KeyError, TypeError)):
        eqn.primitive.bind(X, **eqn.params)
    assert (_jax.bind(eqn.primitive, [X], eqn.params)[0] == X).all()


def test_a_call_stack_is_exported_as_text_only() -> None:
    """Otherwise `user_frames` need not read the text; and if its form changes, this says so."""
    assert not hasattr(source_info_util, "user_frames")
    sine = lambda x: jnp.sin(x)
    (eqn,) = equations(lambda x: sine(x), X)
    first, second = _jax.user_frames(eqn, 2)
    assert (first.file, first.line) == (__file__, sine.__code__.co_firstlineno)
    assert (first.function.rpartition(".")[2], first.column, second.line) == ("<lambda>", 21, first.line + 1)


def test_a_jaxpr_tells_its_function_in_its_debug_info_only() -> None:
    """Nothing else says whether a jaxpr is the inside of a function of JAX."""
    assert not hasattr(jax.make_jaxpr(jnp.sin)(1.0), "fun")
    (theirs,) = [eqn for eqn in equations(lambda x: jnp.where(x > 0, x, 0), X) if "jaxpr" in eqn.params]
    assert _jax.function_of(theirs.params["jaxpr"])[1].startswith(str(pathlib.Path(jax.__file__).parent))


def test_a_type_within_shard_map_is_that_of_an_argument() -> None:
    """Otherwise ask JAX for the type of what all devices see whole: it says so only of arguments."""
    mesh = jax.make_mesh((1,), ("i",))
    outside = [_jax.typeof(x) for x in (X, 1.0, jax.random.key(0))]

    def f(*inside):
        assert [_jax.on_devices(aval) for aval in outside] == [_jax.typeof(x) for x in inside]

    whole = jax.sharding.PartitionSpec()
    jax.eval_shape(jax.shard_map(f, mesh=mesh, in_specs=(whole,) * 3, out_specs=whole), X, 1.0, jax.random.key(0))


def test_a_call_that_raises_once_makes_later_ones_slow_for_good() -> None:
    """Otherwise `forget_failed_calls` may go."""
    divisors = iter([0, 1])  # one for each trace
    jitted = jax.jit(lambda x: x * (1 / next(divisors)))
    with pytest.raises(ZeroDivisionError):
        jitted(X)
    jitted(X)
    assert python_calls(lambda: jitted(X), "cache_miss") == 1
    _jax.forget_failed_calls(jitted)
    jitted(X)
    assert python_calls(lambda: jitted(X), "cache_miss") == 0


def test_an_empty_array_in_host_memory_has_no_public_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise `host_room` takes it from there; without it the room is a copy of zeros, which is right as well."""
    assert not hasattr(jax.lax, "empty2")
    aval = jax.typeof(X)
    for empty in (_jax.programs.empty2, None):
        monkeypatch.setattr(_jax.programs, "empty2", empty)
        room = jax.jit(lambda: jax.device_put(_jax.host_room(aval, 3), jax.memory.Space.Device))()
        assert (room.shape, room.dtype) == ((3, 4), X.dtype)
