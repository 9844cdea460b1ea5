"""Live bytes through the forward and the backward pass."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from statetransform import State, inspect, transform

X = jnp.ones((256, 64))
W = State(jnp.full((64, 64), 0.01), name="w")


def layer(x):
    return jnp.tanh(jnp.sin(x @ W.value))


def net(x):
    for _ in range(6):
        x = layer(x)
    return x.sum()


def each(x):
    for _ in range(6):
        x = transform.checkpoint(layer)(x)
    return x.sum()


def test_arguments_states_and_lines_sum_up_to_what_is_alive():
    line = inspect.timeline(net, X)
    assert [sum(values) for values in zip(*line.groups.values(), strict=True)] == [m.bytes for m in line]
    assert line.peak == max(m.bytes for m in line) == line[line.peak_at].bytes
    assert 0 < line.boundary < len(line)
    assert {m.phase for m in line[: line.boundary]} == {"forward"}
    assert set(line.groups["arguments"]) == {X.nbytes}
    assert set(line.groups["state w"]) == {W.value.nbytes}
    assert f"test_timeline.py:{layer.__code__.co_firstlineno + 1}" in line.groups
    assert all(name.startswith("test_timeline.py:") for name in line.groups if ":" in name)


def test_checkpointing_lowers_the_peak_and_what_is_alive_between_the_passes():
    plain, again = inspect.timeline(net, X), inspect.timeline(each, X)
    assert again.peak < 0.7 * plain.peak
    assert again[again.boundary].bytes < plain[plain.boundary].bytes


_MERGES = "the CPU's compiler of this JAX keeps what checkpoints recompute"


@pytest.mark.parametrize(
    "program", [net, pytest.param(each, marks=pytest.mark.skipif(jax.__version_info__ < (0, 11), reason=_MERGES))]
)
def test_the_estimate_is_near_the_compiled_size(program):
    line = inspect.timeline(program, X)
    assert line.compiled is not None
    assert 0.7 < line.peak / sum(line.compiled.values()) < 1.4
    assert "The compiled program has" in str(line)
    assert "(estimate)" in str(line)


def test_a_loop_holds_what_it_stacks_and_what_an_iteration_needs():
    loop = lambda x: lax.scan(lambda c, _: (layer(c), None), x, None, length=20)[0].sum()
    line = inspect.timeline(loop, X)
    assert line.peak > 20 * X.nbytes
    assert max(line.groups["within loops"]) > 0


def test_views_and_fused_chains_take_nothing():
    chain = lambda x: jnp.sum(jnp.reshape(x, (-1,)) * 2 + 1)
    assert inspect.timeline(chain, X).peak < X.nbytes * 2 + 100


def test_a_function_without_a_backward_pass_and_one_without_equations():
    assert len(inspect.timeline(lambda x: x, X)) == 0
    assert "computes nothing" in str(inspect.timeline(lambda x: x, X))
    assert [m.phase for m in inspect.timeline(lambda i: i + 1, 3)] == ["forward"]


def test_the_plot_names_units_phases_sources_and_the_peak(matplotlib):
    line = inspect.timeline(net, X, compile=False)
    ax = line.plot()
    assert "(KiB" in ax.get_ylabel()
    assert ax.get_title() == f"peak {line.peak / 1024:.4g} KiB at {line[line.peak_at].source}"
    assert {"state w", "forward | backward"} <= {text.get_text() for text in ax.get_legend().get_texts()}
