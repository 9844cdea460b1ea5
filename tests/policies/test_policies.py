"""The policies one by one: what they save, how they combine, how they compare."""

from __future__ import annotations

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import Offloadable, Recompute, Saveable
from jax.extend.core.primitives import name_p

from statetransform import policies, transform

from .saved import TABLE, W, X, gradients, kept, layers, saved_sets

OFFLOAD = policies.save_and_offload_only_these_names(
    names_which_can_be_saved=["s"],
    names_which_can_be_offloaded=["o"],
    offload_src="device",
    offload_dst="pinned_host",
)


def ask(policy, name="a", aval=None):
    return policy(name_p, aval if aval is not None else jax.typeof(X), name=name)


def test_every_policy_of_jax_is_here_under_its_name():
    for name in vars(jax.checkpoint_policies):
        assert callable(getattr(policies, name)), name
        assert name in dir(policies)


def test_every_policy_of_jax_is_in_the_table_of_the_docstring():
    assert policies.__doc__ is not None
    # Some releases list the classes behind the functions, too.
    theirs = [name for name, value in vars(jax.checkpoint_policies).items() if not isinstance(value, type)]
    for name in [*theirs, "any_of", "save_larger_than", "save_from"]:
        assert f"``{name}``" in policies.__doc__


def test_a_policy_of_a_newer_jax_is_passed_on(monkeypatch):
    monkeypatch.setattr(jax.checkpoint_policies, "of_tomorrow", lambda *_, **__: True, raising=False)
    assert policies.of_tomorrow() is True
    with pytest.raises(AttributeError, match="no attribute 'of_yesterday'"):
        policies.of_yesterday


@pytest.mark.parametrize("name", [n for n in TABLE if n not in ("from", "larger", "any", "all", "none", "both")])
def test_a_policy_saves_what_it_saves_under_jax_checkpoint(name):
    assert kept(transform.checkpoint(layers, policy=TABLE[name]), W, X) == kept(
        jax.checkpoint(layers, policy=TABLE[name]), W, X
    )


def test_our_policies_work_under_jax_checkpoint():
    policy = policies.any_of(policies.save_only_these_names("a"), policies.dots_saveable)
    assert len(kept(jax.checkpoint(layers, policy=policy), W, X)) == 3


def test_equal_arguments_make_equal_policies_so_that_caches_find_them():
    assert policies.save_only_these_names("a") == policies.save_only_these_names("a")
    assert hash(policies.save_only_these_names("a")) == hash(policies.save_only_these_names("a"))
    assert policies.save_only_these_names("a") != policies.save_any_names_but_these("a")
    assert policies.any_of(policies.dots_saveable) == policies.any_of(policies.dots_saveable)
    assert policies.any_of(policies.dots_saveable) != policies.all_of(policies.dots_saveable)
    assert policies.save_larger_than(1024) == policies.save_larger_than("1 KiB")


def test_a_policy_remembers_the_names_in_it():
    policy = policies.none_of(policies.any_of(OFFLOAD, policies.save_any_names_but_these("x")))
    with pytest.warns(policies.PolicyWarning, match="has no effect for 'o', 's', 'x'"):
        jax.grad(transform.checkpoint(lambda x: jnp.sum(jnp.sin(x)), policy=policy))(X)


@pytest.mark.parametrize(
    ("combine", "names", "verdict"),
    [
        (policies.any_of, ("s", "-"), Saveable),
        (policies.any_of, ("o", "-"), Offloadable("device", "pinned_host")),
        (policies.any_of, ("o", "s"), Saveable),
        (policies.any_of, ("-", "-"), Recompute),
        (policies.all_of, ("s", "-"), Recompute),
        (policies.all_of, ("s", "o"), Offloadable("device", "pinned_host")),
        (policies.all_of, ("s", "s"), Saveable),
        (policies.none_of, ("s", "-"), Recompute),
        (policies.none_of, ("o", "-"), Recompute),
        (policies.none_of, ("-", "-"), Saveable),
    ],
)
def test_a_combination_takes_the_closest_the_farthest_or_what_is_left(combine, names, verdict):
    def speaking_of(name):
        return lambda prim, *avals, **params: OFFLOAD(prim, *avals, name=name)

    assert ask(combine(*map(speaking_of, names))) == verdict


def at(place):
    return lambda *_, **__: Offloadable("device", place)


HALVES = jax.ShapeDtypeStruct((4,), jnp.bfloat16)


@pytest.mark.parametrize(
    ("policy", "aval", "verdict"),
    [
        (policies.any_of(at("here"), at("there")), None, Offloadable("device", "here")),
        (policies.all_of(at("there"), at("here")), None, Offloadable("device", "there")),
        (policies.any_of(), None, Recompute),
        (policies.all_of(), None, Saveable),
        (policies.none_of(), None, Saveable),
        (policies.any_of(lambda *_, **__: np.bool_(True)), None, Saveable),
        (policies.save_smaller_than(17), None, Saveable),
        (policies.save_smaller_than(16), None, Recompute),
        (policies.save_larger_than(9), HALVES, Recompute),
        (policies.save_larger_than(7), HALVES, Saveable),
    ],
)
def test_a_policy_answers(policy, aval, verdict):
    assert ask(policy, aval=aval) == verdict


def test_another_answer_is_an_error_that_names_the_policy():
    def mine(*_, **__):
        return "yes"

    with pytest.raises(TypeError, match=r"the policy .*mine answers 'yes' for a value computed by 'name'"):
        ask(policies.any_of(mine))


@pytest.mark.parametrize(
    ("size", "saved"), [(15, ["float32[4]"] * 3), (16, []), ("1 KiB", [])], ids=["below", "equal", "above"]
)
def test_larger_means_more_bytes_than_the_limit(size, saved):
    policy = policies.all_of(
        policies.save_larger_than(size), lambda prim, *_, **__: prim.name in ("dot_general", "sin", "tanh")
    )
    assert kept(transform.checkpoint(layers, policy=policy), W, X) == saved


def test_bytes_are_those_of_what_an_equation_computes_not_of_what_it_takes():
    def outer(x):
        return jnp.sum(jnp.sin(jnp.outer(x, x)))

    assert kept(transform.checkpoint(outer, policy=policies.save_larger_than(63)), X) == ["float32[4, 4]"]
    assert kept(transform.checkpoint(outer, policy=policies.save_larger_than(64)), X) == []


def attention(x):
    scores = jnp.sin(x @ x.T)
    return scores @ x


def block(x):
    y = attention(x)
    return jnp.sum(jnp.cos(y) * jnp.tanh(y))


A = jnp.linspace(0.0, 1.0, 15).reshape(5, 3)
LINE = attention.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    "where",
    [
        attention,
        jax.jit(attention),
        functools.partial(attention),
        f"test_policies.py:{LINE}-{LINE + 1}",
        f"policies/test_policies.py:{LINE}-{LINE + 1}",
        f"{__file__}:{LINE}-{LINE + 1}",
    ],
    ids=["function", "jitted", "partial", "lines", "path", "absolute"],
)
def test_save_from_keeps_what_was_computed_there(where):
    saved = kept(transform.checkpoint(block, policy=policies.save_from(where)), A)
    # The transpose and the sine are factors of products; the first product leads to the sine's derivative.
    assert saved == ["float32[3, 5]", "float32[5, 3]", "float32[5, 5]", "float32[5, 5]"]


def test_save_from_keeps_one_line_or_a_whole_file() -> None:
    assert kept(transform.checkpoint(block, policy=policies.save_from(f"test_policies.py:{LINE + 1}")), A) == [
        "float32[5, 3]"
    ]
    assert len(kept(transform.checkpoint(block, policy=policies.save_from(pathlib.Path(__file__).name)), A)) >= 4


def test_save_from_combines_with_other_policies():
    both = policies.all_of(policies.save_from(attention), policies.dots_saveable)
    assert kept(transform.checkpoint(block, policy=both), A) == ["float32[5, 3]", "float32[5, 5]"]
    either = policies.any_of(policies.save_from(f"test_policies.py:{LINE + 1}"), policies.save_larger_than(99))
    assert kept(transform.checkpoint(block, policy=either), A) == ["float32[5, 3]", "float32[5, 5]", "float32[5, 5]"]
    others = policies.none_of(policies.save_from(attention))
    assert "float32[5, 5]" not in kept(transform.checkpoint(block, policy=others), A)


@pytest.mark.parametrize("function", [jnp.tanh, jnp.exp, jnp.exp2, jax.nn.sigmoid, jnp.sqrt, jax.lax.rsqrt])
def test_save_from_spares_the_way_to_a_value_whose_derivative_uses_itself(function):
    def program(x):
        y = function(jnp.abs(x @ x.T) + 1.0)
        return jnp.sum(y * 2.0)

    here = policies.save_from(f"test_policies.py:{program.__code__.co_firstlineno + 1}")
    only = policies.all_of(
        here, lambda prim, *_, **__: prim.name in ("tanh", "exp", "exp2", "logistic", "sqrt", "rsqrt")
    )
    fun = transform.checkpoint(program, policy=only)
    assert kept(fun, A) == ["float32[5, 5]"]
    np.testing.assert_allclose(jax.grad(fun)(A), jax.grad(program)(A), rtol=1e-5)
    np.testing.assert_allclose(jax.jvp(fun, (A,), (A,))[1], jax.jvp(program, (A,), (A,))[1], rtol=1e-5)


def test_save_from_reaches_into_loops_branches_and_compiled_functions():
    @jax.jit
    def step(x):
        return jnp.sin(x) * 2.0

    def program(x):
        x, _ = jax.lax.scan(lambda c, _: (step(c), None), x, None, length=3)
        return jax.lax.cond(x[0] > 0, lambda x: step(x).sum(), lambda x: step(x).sum(), x)

    line = step.__wrapped__.__code__.co_firstlineno + 2
    fun = transform.checkpoint(program, policy=policies.save_from(f"test_policies.py:{line}"))
    np.testing.assert_allclose(jax.grad(fun)(X), jax.grad(program)(X), rtol=1e-6)
    assert any(entry.startswith("float32[3, 4]") for entry in kept(fun, X))


def test_a_library_function_traced_elsewhere_before_counts_where_it_is_called():
    jnp.where(X > 0, X, 1.0)  # traces the inside of `where` with this line

    def program(x):
        y = jnp.where(x > 0, x, 1.0)
        return jnp.sum(jnp.sin(y))

    line = program.__code__.co_firstlineno + 1
    assert kept(transform.checkpoint(program, policy=policies.save_from(f"test_policies.py:{line}")), X) == [
        "bool[4]",
        "float32[4]",
    ]


def test_save_from_under_jax_checkpoint_is_an_error_instead_of_doing_nothing():
    with pytest.raises(TypeError, match=r"jax\.checkpoint does not tell a policy where a value was computed"):
        jax.grad(jax.checkpoint(block, policy=policies.save_from(attention)))(A)


def test_save_from_a_place_where_nothing_is_computed_warns_with_the_places():
    with pytest.warns(policies.PolicyWarning, match=rf"keeps nothing.*test_policies.py:{LINE}"):
        jax.grad(transform.checkpoint(block, policy=policies.save_from("elsewhere.py:3")))(A)


def test_save_from_what_has_no_lines_is_an_error():
    for where in (len, 3, jnp.sin.__class__):
        with pytest.raises(TypeError, match="takes a function written in Python, or a file as text"):
            policies.save_from(where)
    with pytest.raises(ValueError, match=r"cannot read 'model\.py:forward'; write .*'file\.py:12'"):
        policies.save_from("model.py:forward")


def test_names_are_given_to_whole_pytrees_and_only_to_arrays():
    tree = {"w": X, "n": jnp.arange(3), "key": jax.random.key(0), "kind": "dense", "none": None, "rate": 0.5}
    named = jax.jit(lambda: policies.checkpoint_name({k: v for k, v in tree.items() if k != "kind"}, "t"))()
    assert named["w"].shape == X.shape
    assert jax.dtypes.issubdtype(named["key"].dtype, jax.dtypes.prng_key)
    assert policies.checkpoint_name(tree, "t")["kind"] == "dense"
    with pytest.raises(TypeError, match="a name is text, not 3 of type int"):
        policies.checkpoint_name(X, 3)


def test_named_integers_and_keys_pass_through_a_gradient():
    def program(x, n, key):
        x, n, key = policies.checkpoint_name((x, n, key), "t")
        return jnp.sum(jnp.sin(x) * n * jax.random.uniform(key, x.shape))

    args = (X, jnp.arange(4), jax.random.key(0))
    fun = transform.checkpoint(program, policy=policies.save_only_these_names("t"))
    np.testing.assert_allclose(jax.grad(fun)(*args), jax.grad(program)(*args), rtol=1e-6)


def test_every_policy_saves_the_same_and_gives_the_same_gradients_in_both_implementations(request):
    saved, plain = saved_sets(), gradients()
    assert plain == pytest.approx(dict.fromkeys(plain, plain["None"]), rel=1e-5)
    assert set(saved) >= set(TABLE)
    assert saved["own sine"] == ["float32[4]"]  # a policy of one's own is asked about every primitive
    request.getfixturevalue("remat3")
    assert saved_sets() == saved
    assert gradients() == pytest.approx(plain, rel=1e-5)
