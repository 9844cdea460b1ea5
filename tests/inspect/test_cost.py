"""`cost` and `compare`: what a gradient step costs, and which checkpointing is worth it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import statetransform as st
from statetransform import State, inspect, policies, transform

W = jnp.full((64, 64), 0.01)
X = jnp.ones((128, 64))


def layer(w, x):
    return jnp.tanh(jnp.sin(x @ w))


def net(w, x):
    for _ in range(4):
        x = layer(w, x)
    return x.sum()


def each(w, x):
    for _ in range(4):
        x = jax.checkpoint(layer)(w, x)
    return x.sum()


def loop(w, x):
    return lax.scan(jax.checkpoint(lambda c, _: (layer(w, c), None)), x, None, length=4)[0].sum()


def reference(fun, *args):
    step = jax.value_and_grad(fun, argnums=tuple(range(len(args))))
    return jax.jit(step).lower(*args).compile()


@pytest.mark.optimized
def test_numbers_are_those_of_the_compiled_step():
    found, compiled = inspect.cost(net, W, X), reference(net, W, X)
    memory = compiled.memory_analysis()
    assert found.argument_bytes == memory.argument_size_in_bytes == W.nbytes + X.nbytes
    assert found.temporary_bytes == memory.temp_size_in_bytes
    counts = compiled.cost_analysis()
    counts = counts[0] if isinstance(counts, list) else counts
    assert found.flops == counts["flops"]
    assert found.bytes_accessed == counts["bytes accessed"]
    assert found.estimates == {"bytes_accessed"}


def test_an_estimate_of_time_that_the_compiler_could_not_make_is_none(monkeypatch):
    found = []
    for seconds in (0.25, -1.999):
        monkeypatch.setattr(jax.stages.Compiled, "cost_analysis", lambda self, said=seconds: {"optimal_seconds": said})
        found.append(inspect.cost(net, W, X).seconds)
    assert found == [0.25, None]


def test_a_loop_makes_the_flops_an_estimate_that_counts_every_iteration():
    found = inspect.cost(loop, W, X)
    assert "flops" in found.estimates
    assert 0.9 < found.flops / inspect.cost(each, W, X).flops < 1.5
    assert found.flops > 2 * reference(loop, W, X).cost_analysis()["flops"]
    assert "estimate: counted before compilation with each loop as often as it runs" in str(found)


def test_the_table_says_what_is_an_estimate_and_the_export_is_plain():
    found = inspect.cost(net, W, X)
    rows = found.to_dicts()
    assert [row["quantity"] for row in rows if row["estimate"]] == ["bytes_accessed"]
    assert "estimate: the compiler's, without caches" in str(found)
    assert "buffers of the compiled program" in found._repr_html_()


def test_outputs_that_are_no_scalars_and_steps_that_return_nothing():
    u = State(X, name="u")

    def step(dt):
        u.value = u.value + dt * jnp.sin(u.value)

    assert inspect.cost(step, 0.1).output_bytes >= 2 * X.nbytes
    assert inspect.cost(jnp.sin, X).argument_bytes == 2 * X.nbytes  # the cotangent is an argument
    assert "costs of second derivatives: pass `f`" in str(inspect.cost(jax.grad(net), W, X))
    assert "second derivatives" not in str(inspect.cost(net, W, X))


def test_candidates_side_by_side():
    found = inspect.compare({"plain": net, "each layer": each, "everything": policies.everything_saveable}, W, X)
    assert [row.name for row in found] == ["plain", "each layer", "everything"]
    assert found["plain"].recompute_ratio == 1.0
    assert found["each layer"].residual_bytes < found["plain"].residual_bytes
    assert found["everything"].residual_bytes == found["plain"].residual_bytes
    assert found["each layer"].time is None
    for row in found:
        dominated = [o for o in found if o.memory <= row.memory and o.flops <= row.flops
                     and (o.memory < row.memory or o.flops < row.flops)]  # fmt: skip
        assert row.is_best == (not dominated)
    assert set(found.best) == {row.name for row in found if row.is_best}


def test_policies_stand_for_the_function_among_the_candidates_or_the_first_argument():
    jaxs = jax.checkpoint_policies
    candidates = {
        "none": None,
        "dots": policies.dots_saveable,
        "jax": jaxs.nothing_saveable,
        "jax's of two": jaxs.save_from_both_policies(policies.dots_saveable, policies.nothing_saveable),
        "own": lambda prim, *_, **__: prim.name == "sin",
    }
    first = inspect.compare(candidates, net, W, X)
    functions = [net, jax.checkpoint(net), transform.checkpoint(net), jax.jit(net), lambda *args, **kwargs: net(*args)]
    second = inspect.compare({**{f"f{i}": f for i, f in enumerate(functions)}, **candidates}, W, X)
    assert [r.residual_bytes for r in first] == [r.residual_bytes for r in second][len(functions) :]
    assert first["dots"].residual_bytes < first["none"].residual_bytes
    assert first["jax"].residual_bytes == W.nbytes + X.nbytes


def test_budgets_can_be_compared_as_policies_and_as_functions():
    budget = lambda: policies.fit("100 KiB", compile=False)
    fitting = transform.checkpoint(net, policy=budget())
    table = inspect.compare({"plain": net, "policy": budget(), "function": fitting, "loops": policies.loops(2)}, W, X)
    assert table["policy"].temporary_bytes == table["function"].temporary_bytes < table["plain"].temporary_bytes
    for name in ("policy", "function"):
        over_plain = table[name].flops / table["plain"].flops
        assert 1.05 < over_plain < 1.4
        assert table[name].recompute_ratio == pytest.approx(over_plain, rel=0.01)
    with pytest.raises(
        KeyError, match="no candidate is called 'dots'; there are 'plain', 'policy', 'function', 'loops'"
    ):
        table["dots"]


def test_loops_that_are_run_backwards_can_be_compared():
    def loss(x, checkpoint=None):
        a, v = State(x, name="a"), State(jnp.zeros_like(x), name="v")

        def step():
            v.value = v.value - 0.1 * jnp.sin(a.value)
            a.value = a.value + 0.1 * v.value

        def back():
            a.value = a.value - 0.1 * v.value
            v.value = v.value + 0.1 * jnp.sin(a.value)

        way = st.Reversible(back, checkpoint[0]) if isinstance(checkpoint, tuple) else checkpoint
        transform.for_loop(step, length=200, checkpoint=way)
        return a.value.sum()

    ways = {"plain": None, "stored": 20, "backwards": (None,), "every 50": (50,)}
    candidates = {name: lambda x, way=way: loss(x, way) for name, way in ways.items()}
    found = inspect.compare(candidates, jnp.ones(1000))
    plain, stored, backwards, every = (found[name] for name in ways)
    carry = 8 * 1000
    assert backwards.temporary_bytes < every.temporary_bytes < stored.temporary_bytes < plain.temporary_bytes
    assert backwards.temporary_bytes <= 8 * carry and plain.temporary_bytes > 90 * carry
    assert backwards.residual_bytes <= 3 * carry < every.residual_bytes < stored.residual_bytes < plain.residual_bytes
    assert plain.flops < stored.flops and 1.5 * plain.flops < backwards.flops <= every.flops < 2 * plain.flops
    assert plain.recompute_ratio == 1 and backwards.recompute_ratio > 1.2  # what is undone


def test_a_name_that_no_value_bears_is_a_note():
    found = inspect.compare({"typo": policies.save_only_these_names("zzz")}, net, W, X)
    assert "has no effect for 'zzz'" in str(found)


def test_run_time_on_request():
    found = inspect.compare({"plain": net}, W, X, time=True)
    assert found[0].time > 0
    assert "time" in str(found)
    assert inspect.compare({"plain": net}, jax.ShapeDtypeStruct((64, 64), jnp.float32), X, time=True)[0].time is None


@pytest.mark.parametrize(
    ("candidates", "error", "words"),
    [
        ({}, ValueError, "at least one candidate"),
        ({"a": policies.dots_saveable}, TypeError, "no function comes first in the arguments"),
        (jnp.sin, TypeError, r"compare takes functions and policies by name, not a function\. Write `compare"),
        ([jnp.sin], TypeError, "compare takes functions and policies by name"),
        ("dots_saveable", TypeError, "compare takes functions and policies by name"),
        ({"a": "dots_saveable"}, TypeError, "Write policy=policies.dots_saveable"),
        ({"a": policies.save_only_these_names}, TypeError, "makes a policy and is not one itself"),
    ],
)
def test_what_cannot_be_compared_says_what_to_write(candidates, error, words):
    with pytest.raises(error, match=words):
        inspect.compare(candidates, X)


def test_the_plot_has_units_and_a_legend_that_names_each_candidate(matplotlib):
    names = {f"policy {p}": getattr(policies, p) for p in ("dots_saveable", "nothing_saveable", "everything_saveable")}
    found = inspect.compare({"plain": net, "checkpoint each layer": each, **names, "none": None}, W, X)
    ax = found.plot()
    # The one with the most memory stands at the edge, and is not cut.
    assert not any(line.get_clip_on() for line in ax.get_lines() if line.get_marker() not in ("None", ""))
    assert "KiB" in ax.get_ylabel()
    assert "FLOPs" in ax.get_xlabel()
    shown = [text.get_text() for text in ax.get_legend().get_texts()]
    assert shown == [f"{row.name} *" if row.is_best else row.name for row in found]
    points = [line for line in ax.lines if line.get_linestyle() == "None"]
    assert [line.get_xdata()[0] for line in points] == [row.recompute_ratio for row in found]
    assert len({line.get_marker() for line in points}) == len(found)


def test_a_loss_of_params_and_a_batch_is_no_policy():
    def loss(params, *batch, **options):
        return (params * batch[0]).sum()

    def policy(prim, *_, **params):
        return True

    args = jnp.ones(3), jnp.ones(3)
    assert [row.name for row in inspect.compare({"plain": loss}, *args, compile=False)] == ["plain"]
    named = {"plain": loss, "kept": policy}
    assert [row.name for row in inspect.compare(named, *args, compile=False)] == ["plain", "kept"]
