"""What a compiler does wrong is refused: values of loops in the host's memory, on GPUs before jaxlib 0.11.1."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import _jax, policies, transform

OFFLOAD = policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["h"], offload_src="device", offload_dst="pinned_host"
)


@pytest.fixture(params=[(0, 10, 2), (0, 11, 0)])
def old_jaxlib(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:

    module = sys.modules["statetransform._memory.targets.target"]
    monkeypatch.setattr(module, "jaxlib_version", lambda: request.param)


def step(x: jax.Array, _: Any) -> tuple[jax.Array, None]:
    return jnp.sin(policies.checkpoint_name(jnp.sin(x), "h")), None


def on(target: st.Target) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((1024,), jnp.float32, sharding=target.sharding)


def whole(x: jax.Array) -> jax.Array:
    return jax.lax.scan(step, x, length=4)[0].sum()


def inside(x: jax.Array) -> jax.Array:
    body = transform.checkpoint(lambda x: step(x, None)[0], policy=OFFLOAD)
    return jax.lax.scan(lambda x, _: (body(x), None), x, length=4)[0].sum()


def test_room_in_the_hosts_memory_is_refused(h100: st.Target, old_jaxlib: None) -> None:
    budget = st.MemoryBudget("64 KiB", host="1 MiB", target=h100)
    f = lambda x: transform.scan(step, x, length=400, checkpoint=budget)[0].sum()
    with pytest.raises(ValueError, match=r"host='1 MiB' is refused for H100: .*openxla/xla#46231.*jaxlib 0\.11\.1"):
        jax.grad(f)(jnp.ones(1024))


def test_policies_that_offload_are_refused_in_loops_and_around_them(h100: st.Target, old_jaxlib: None) -> None:
    for f in (transform.checkpoint(whole, policy=OFFLOAD), inside):
        with pytest.raises(ValueError, match=r"offload.* is refused for H100"):
            jax.jit(jax.grad(f)).lower(on(h100))


def test_they_are_not_refused_elsewhere(h100: st.Target, v5e: st.Target, old_jaxlib: None) -> None:
    jax.jit(jax.grad(inside)).lower(on(v5e))
    outside = transform.checkpoint(lambda x: step(x, None)[0].sum(), policy=OFFLOAD)
    jax.jit(jax.grad(outside)).lower(on(h100))


def test_a_newer_jaxlib_refuses_nothing(h100: st.Target, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(sys.modules["statetransform._memory.targets.target"], "jaxlib_version", lambda: (0, 11, 1))
    jax.jit(jax.grad(inside)).lower(on(h100))


def test_the_step_of_a_loop_is_told_from_other_traces() -> None:
    seen = []
    look = lambda x: seen.append(_jax.is_in_loop()) or x
    jax.lax.scan(lambda x, _: (look(x), None), 1.0, length=2)
    transform.fori_loop(0, 2, lambda i, x: look(x), 1.0)
    jax.jit(look)(1.0)
    jax.lax.cond(True, look, look, 1.0)
    assert seen[-3:] == [False] * 3 and seen[:-3] and all(seen[:-3])
