"""A policy that can have no effect speaks."""

from __future__ import annotations

import re
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import statetransform as st
from statetransform import inspect, policies, transform

from .saved import W, X, layers


@pytest.mark.parametrize(
    ("policy", "spelling"),
    [
        ("dots_saveable", "policy=policies.dots_saveable "),
        ("dots_savable", "policy=policies.dots_saveable "),
        ("nothing", "policy=policies.nothing_saveable "),
        ("act", "policy=policies.save_only_these_names('act')"),
        ("2GiB", "policy=policies.fit('2GiB')"),
        (st.MemoryBudget, 'policy=st.MemoryBudget("2GiB")'),
        (policies.fit, 'policy=policies.fit("2GiB")'),
        (1024, "policy=policies.save_larger_than(1024)"),
        ([policies.dots_saveable], "policy=policies.any_of(p, q)"),
        (policies.save_only_these_names, "policy=policies.save_only_these_names(names_which_can_be_saved)"),
        (jax.checkpoint_policies.save_only_these_names, "policies.save_only_these_names(names_which_can_be_saved)"),
        (policies.save_larger_than, "policy=policies.save_larger_than(size)"),
    ],
)
def test_what_is_no_policy_is_an_error_that_shows_how_to_write_it(policy, spelling):
    with pytest.raises(TypeError, match=re.escape(spelling)):
        transform.checkpoint(layers, policy=policy)


def test_none_inside_a_combination_is_an_error():
    with pytest.raises(TypeError, match="any_of takes policies, and None is not one"):
        policies.any_of(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [policies.save_only_these_names, policies.save_any_names_but_these, policies.save_anything_except_these_names],
)
def test_names_are_given_one_by_one(make):
    name = make.__name__
    with pytest.raises(TypeError, match=rf"policies\.{name}: a name is text.*Write {name}\('a', 'b'\)\."):
        make(["a", "b"])
    with pytest.raises(TypeError, match="a name is text, not 3 of type int"):
        make(3)


@pytest.mark.parametrize("key", ["names_which_can_be_saved", "names_which_can_be_offloaded"])
def test_names_of_values_to_offload_are_lists(key):
    names = {"names_which_can_be_saved": [], "names_which_can_be_offloaded": [], key: "act"}
    with pytest.raises(TypeError, match=rf"`{key}` is a list of names, not the text 'act'. Write \['act'\]"):
        policies.save_and_offload_only_these_names(**names, offload_src="device", offload_dst="pinned_host")


def test_a_policy_of_ones_own_says_its_class():
    class Everything(policies.Policy):
        def decide(self, primitive, avals, params, source):
            return True

    assert repr(policies.any_of(Everything(), policies.dots_saveable)) == "any_of(Everything(), dots_saveable)"


def test_a_name_that_no_value_bears_is_a_warning_that_lists_the_names_seen():
    with pytest.warns(policies.PolicyWarning) as caught:
        jax.grad(transform.checkpoint(layers, policy=policies.save_only_these_names("A", "b")))(W, X)
    (text,) = [str(w.message) for w in caught]
    assert "save_only_these_names('A', 'b') has no effect for 'A'" in text
    assert "The names seen are 'a', 'b'. Did you mean 'a'?" in text


JAX = jax.checkpoint_policies
OFFLOAD = {"offload_src": "device", "offload_dst": "pinned_host"}
OF_JAX = {
    "only": JAX.save_only_these_names("Act", "act"),
    "any but": JAX.save_any_names_but_these("Act"),
    "offload": JAX.save_and_offload_only_these_names(
        names_which_can_be_saved=["act"], names_which_can_be_offloaded=["Act"], **OFFLOAD
    ),
    "both": JAX.save_from_both_policies(JAX.dots_saveable, JAX.save_only_these_names("Act")),
    "combined": policies.any_of(JAX.dots_saveable, JAX.save_only_these_names("Act")),
}


@pytest.mark.parametrize("policy", OF_JAX.values(), ids=OF_JAX)
def test_names_in_policies_of_jax_are_looked_for_too(policy):
    f = transform.checkpoint(lambda x: jnp.sum(jnp.sin(checkpoint_name(jnp.sin(x), "act"))), policy=policy)
    with pytest.warns(policies.PolicyWarning, match=r"no effect for 'Act'(.|\n)*The names seen are 'act'") as caught:
        transform.grad(f)(X)
    assert caught[0].filename == __file__


def with_vjp(derive):
    @derive.custom_vjp
    def kernel(x):
        return jnp.sin(x)

    kernel.defvjp(lambda x: (jnp.sin(x), checkpoint_name(jnp.cos(x), "context")), lambda residual, ct: (residual * ct,))
    return kernel


def with_jvp(derive):
    @derive.custom_jvp
    def kernel(x):
        return jnp.sin(x)

    kernel.defjvp(lambda xs, dots: (jnp.sin(xs[0]), checkpoint_name(jnp.cos(xs[0]), "context") * dots[0]))
    return kernel


@pytest.mark.parametrize("where", ["itself", "jit", "scan"])
@pytest.mark.parametrize("derive", [jax, transform], ids=["jax", "transform"])
@pytest.mark.parametrize("make", [with_vjp, with_jvp])
def test_a_name_in_a_rule_as_attention_kernels_have_it_is_seen(make, derive, where):
    kernel = make(derive)
    around = {
        "itself": lambda x: kernel(x),
        "jit": jax.jit(lambda x: kernel(x)),
        "scan": lambda x: jax.lax.scan(lambda c, _: (kernel(c), None), x, length=2)[0],
    }[where]
    layer = lambda x: jnp.sum(around(W[0] * x) ** 2)

    def kept(policy):
        _, pull = jax.vjp(transform.checkpoint(layer, policy=policy), X)
        return sum(leaf.size for leaf in jax.tree.leaves(pull) if hasattr(leaf, "size"))

    least = kept(policies.nothing_saveable)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved = kept(policies.save_only_these_names("context"))
        either = kept(policies.any_of(policies.save_only_these_names("context"), policies.dots_saveable))
    assert saved == either > least
    with pytest.warns(policies.PolicyWarning, match=r"no effect for 'Context'.* The names seen are 'context'"):
        kept(policies.save_only_these_names("Context"))


def offloads(name):
    return JAX.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=[name], **OFFLOAD
    )


NEEDED = {
    "a factor": lambda x: checkpoint_name(jnp.sin(x), "out") * x,
    "an input of the step": lambda x: jnp.sin(checkpoint_name(x, "out") + 1.0),
    "inside jit": lambda x: jax.jit(lambda x: jnp.sin(checkpoint_name(jnp.sin(x), "out")))(x),
    "inside a loop": lambda x: jax.lax.scan(
        lambda c, _: (jnp.sin(checkpoint_name(jnp.sin(c), "out")), None), x, length=3
    )[0],
}
NOT_NEEDED = {
    "an output": lambda x: checkpoint_name(jnp.sin(jnp.sin(x)), "out"),
    "a summand": lambda x: 2.0 * checkpoint_name(W @ x, "out") + jnp.sin(x),
    "inside jit": lambda x: jax.jit(lambda x: checkpoint_name(W @ x, "out").sum())(x),
}


@pytest.mark.parametrize("wrap", [lambda p: p, lambda p: policies.any_of(p, policies.nothing_saveable)])
@pytest.mark.parametrize("where", NEEDED)
def test_a_value_that_a_derivative_needs_is_offloaded_without_a_word(where, wrap):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = transform.checkpoint(NEEDED[where], policy=wrap(offloads("out")))
        jaxpr = transform.make_jaxpr(transform.grad(lambda x: jnp.sum(f(x))))(X)
    assert "device_put" in str(jaxpr)


@pytest.mark.parametrize("wrap", [lambda p: p, lambda p: policies.any_of(p, policies.nothing_saveable)])
@pytest.mark.parametrize("where", NOT_NEEDED)
def test_a_value_that_no_derivative_needs_is_not_offloaded_in_silence(where, wrap):
    f = transform.checkpoint(NOT_NEEDED[where], policy=wrap(offloads("out")))
    with pytest.warns(
        policies.PolicyWarning, match=r"offloads nothing for 'out'(.|\n)*x = checkpoint_name\(x, 'out'\)"
    ):
        transform.make_jaxpr(f)(X)


def test_a_value_that_save_from_keeps_has_no_name_but_its_own(capsys):
    f = transform.checkpoint(lambda x: NEEDED["a factor"](jnp.sin(W @ x)), policy=policies.save_from(__file__))
    found = {(r.kind, r.name or r.primitive) for r in inspect.residuals(f, X)}
    assert found >= {("computed", "dot_general"), ("named", "out")}
    assert [name for kind, name in found if kind == "named"] == ["out"]
    inspect.print_saved_residuals(f, X)
    assert "kept from" not in capsys.readouterr().out
    outer = transform.checkpoint(lambda x: f(x), policy=policies.save_only_these_names("in"))
    with pytest.warns(policies.PolicyWarning, match="The names seen are 'out'"):
        transform.make_jaxpr(outer)(X)


@pytest.mark.parametrize(
    "policy",
    [
        policies.offload_dot_with_no_batch_dims("device", "pined_host"),
        policies.any_of(
            policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[],
                names_which_can_be_offloaded=["out"],
                offload_src="device",
                offload_dst="pined_host",
            )
        ),
    ],
)
def test_a_memory_that_the_device_does_not_have_is_an_error(policy):
    f = transform.checkpoint(NEEDED["a factor"], policy=policy)
    with pytest.raises(ValueError, match=r"devices have no memory 'pined_host'\. They have .*'pinned_host'"):
        transform.grad(lambda x: f(x).sum())(X)


def test_a_budget_where_a_policy_of_values_belongs_is_refused():
    under_jax = lambda p: jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum(), policy=p))(X)
    for use in (under_jax, policies.any_of, lambda p: inspect.compare({"a": policies.none_of(p)}, jnp.sin, X)):
        with pytest.raises(TypeError, match=r"MemoryBudget\('1MiB'\) is for a whole function"):
            use(policies.fit("1MiB"))


def test_policies_of_others_are_not_searched_for_texts():
    saved = {"dot_general", "sin"}
    f = transform.checkpoint(lambda x: jnp.sum(jnp.sin(x)), policy=lambda prim, *_, **__: prim.name in saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transform.grad(f)(X)


def test_a_name_where_no_value_has_one_says_how_to_give_one():
    with pytest.warns(policies.PolicyWarning, match=re.escape("give one with checkpoint_name(value, name)")):
        jax.grad(transform.checkpoint(lambda x: jnp.sum(jnp.sin(x)), policy=policies.save_only_these_names("a")))(X)


def test_names_inside_loops_and_combinations_are_found():
    def program(x):
        return jax.lax.scan(lambda c, _: (checkpoint_name(jnp.sin(c), "inner"), None), x, None, length=2)[0].sum()

    policy = policies.any_of(policies.dots_saveable, policies.save_only_these_names("inner"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.grad(transform.checkpoint(program, policy=policy))(X)
    with pytest.warns(policies.PolicyWarning, match="'outer'"):
        jax.grad(transform.checkpoint(program, policy=policies.none_of(policies.save_only_these_names("outer"))))(X)
