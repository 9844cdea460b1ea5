"""What the room of targets gives to those who plan: bytes, figures, refusals, and nothing left in JAX's folder."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

import statetransform as st
from statetransform import _jax
from statetransform._memory.targets import compile_for, placed, target_of

from .conftest import target_or_skip

pytestmark = pytest.mark.optimized


def square(n: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((n, n), jnp.float32)


def step(w: jax.Array, x: jax.Array) -> list[jax.Array]:
    return [jax.grad(lambda w: (jnp.tanh(jnp.tanh(x @ w) @ w) ** 2).sum())(w)]


def test_the_bytes_are_those_that_the_compiler_says(card: st.Target) -> None:
    found = compile_for(card, step, [square(8192)] * 2)
    abstract = jax.ShapeDtypeStruct((8192, 8192), jnp.float32, sharding=card.sharding)
    memory = jax.jit(step).lower(abstract, abstract).compile().memory_analysis()
    assert found.temporary == memory.temp_size_in_bytes > 0
    assert (found.argument, found.output) == (2 * 2**28, 2**28)
    assert found.fits(found.temporary) and not found.fits(found.temporary - 1)


def test_a_tpu_says_operations_and_seconds_and_a_gpu_does_not(card: st.Target) -> None:
    found = compile_for(card, step, [square(8192)] * 2)
    if card.platform == "gpu":
        assert (found.flops, found.bytes_accessed, found.seconds) == (None, None, None)
    else:
        assert 5 * 2 * 8192**3 <= (found.flops or 0) < 6 * 2 * 8192**3
        assert 1e-3 < (found.seconds or 0) < 1


def test_a_program_that_does_not_fit_the_chip_is_an_answer(v5e: st.Target) -> None:
    found = compile_for(v5e, step, [square(1 << 16)] * 2)
    assert found.is_refused and found.output_shardings is None
    assert found.total is not None and found.total > (v5e.memory or 0)
    assert found.temporary == found.total - 3 * 2**34
    assert not found.fits(1 << 50)


def test_a_refusal_without_a_figure_is_of_more_than_there_is(v5e: st.Target) -> None:
    from statetransform._memory.targets.compiling import _refused

    lowered = jax.jit(step).lower(*placed(v5e, [square(64)] * 2))
    assert _refused(v5e, lowered, "RESOURCE_EXHAUSTED: no more").total == (v5e.memory or 0) + 1
    older = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.50G of 15.75G hbm."
    assert _refused(v5e, lowered, older).total == int(18.5 * 2**30)


def test_what_cannot_be_compiled_raises_what_jax_raises(card: st.Target) -> None:
    def wrong(x: jax.Array) -> list[jax.Array]:
        raise TypeError("cannot be traced")

    with pytest.raises(TypeError, match="cannot be traced"):
        compile_for(card, wrong, [square(4)])


def test_arguments_on_a_mesh_are_compiled_for_it(card: st.Target) -> None:
    several = target_or_skip("H100", 4) if card.card else card
    split = jax.NamedSharding(several.mesh((4,), ("d",)), jax.P("d"))
    found = compile_for(several, step, [square(8192)] * 2, [None, split])
    assert found.argument == 2**28 + 2**26


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit, AxisType.Manual])
def test_types_on_a_mesh_are_compiled_for_it(card: st.Target, kind: AxisType) -> None:
    several = target_or_skip("H100", 4) if card.card else card
    mesh, found = several.mesh((4,), ("d",)), []
    if kind is AxisType.Explicit:
        mesh = jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=(kind,))
    spec = jax.P("d")

    def look(x: jax.Array) -> jax.Array:
        found.append(compile_for(target_of(None, x), lambda x: [jnp.sin(x) * x], [_jax.typeof(x)]))
        return x

    run = look
    if kind is AxisType.Manual:
        run = jax.shard_map(look, mesh=mesh, in_specs=spec, out_specs=spec)
    struct = jax.ShapeDtypeStruct((2048, 2048), jnp.float32, sharding=jax.NamedSharding(mesh, spec))
    jax.jit(run).lower(struct)
    # Types on automatic axes do not say how values are partitioned; `transform.jit` knows it by itself.
    assert found[0].argument == (2**24 if kind is AxisType.Auto else 2**22)


def test_the_default_backend_needs_no_sharding_and_may_be_fast() -> None:
    here = target_of()
    assert all(some.sharding is None for some in placed(here, [square(4)]))
    assert compile_for(here, step, [square(64)] * 2, is_fast=True).fits(1 << 20)


def test_nothing_is_left_in_the_folder_for_programs(
    card: st.Target, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX writes such programs, and warns (an error here) each time that it cannot read one."""
    before = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    try:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        jax.experimental.compilation_cache.compilation_cache.reset_cache()
        for _ in range(2):
            compile_for(card, step, [square(128)] * 2)
        assert not list(tmp_path.iterdir())
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        jax.experimental.compilation_cache.compilation_cache.reset_cache()


def test_fingerprints_tell_targets_and_settings_apart(card: st.Target, monkeypatch: pytest.MonkeyPatch) -> None:
    before = card.fingerprint
    assert before != target_of().fingerprint
    assert before == st.target(card.name).fingerprint
    monkeypatch.setenv("XLA_FLAGS", "--xla_something")
    assert card.fingerprint != before
