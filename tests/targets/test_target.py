"""`st.target`: devices to compile for, by name; how one is found; and what is said where it cannot be had."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import os
import pickle
import subprocess
import sys
from importlib import metadata

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import topologies

import statetransform as st
from statetransform import _jax, transform
from statetransform._memory.targets import cards, compilers, target_of

from .conftest import target_or_skip

MATRIX = jax.ShapeDtypeStruct((256, 256), jnp.float32)


def on(sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=sharding)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own, without what the tests set in the environment."""
    ours = ("JAX_", "XLA_", "TPU_", "ALLOW_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    root = os.path.dirname(os.path.dirname(st.__file__))
    env.update(PYTHONPATH=root, **environment)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)


# What a target is.


@pytest.mark.parametrize("name", sorted(cards.CARDS))
def test_every_card_of_the_table_compiles(name: str) -> None:
    found = target_or_skip(name)
    assert (found.name, len(found.devices), found.memory) == (name, 1, cards.CARDS[name].memory)
    assert 15e9 < cards.CARDS[name].memory < 192e9
    program = jax.jit(lambda x: jnp.sin(x @ x) @ x).lower(on(found.sharding)).compile()
    assert program.memory_analysis().argument_size_in_bytes == 4 * 256 * 256


def test_a_topology_of_tpus_has_its_devices_and_their_memory(v5e: st.Target) -> None:
    assert (v5e.name, len(v5e.devices), v5e.memory) == ("v5e:2x2", 4, int(15.75 * 2**30))
    program = jax.jit(lambda x: jnp.sin(x @ x) @ x).lower(on(v5e.sharding)).compile()
    assert program.memory_analysis().argument_size_in_bytes == 4 * 256 * 256


def test_the_target_of_a_mesh_has_its_name_in_whatever_order_the_mesh_has_its_devices(v5e: st.Target) -> None:
    mesh = v5e.mesh((4,), ("x",))
    assert list(mesh.devices.flat) != list(v5e.devices)  # JAX follows the wires
    assert target_of(None, mesh) is target_of(None, jax.NamedSharding(mesh, jax.P("x"))) is v5e
    assert target_of(v5e.devices[2:]) is v5e


def test_equal_names_give_the_same_devices_also_after_copying(card: st.Target) -> None:
    assert st.target(card.name) is card
    assert copy.deepcopy(card) is card
    assert pickle.loads(pickle.dumps(card)) is card
    here = target_of()
    assert pickle.loads(pickle.dumps(here)) == here


def test_a_mesh_is_of_as_many_devices_as_it_needs(card: st.Target) -> None:
    several = target_or_skip("H100", 8) if card.card else card
    mesh = several.mesh((2, 2), ("data", "model"))
    assert mesh.shape == {"data": 2, "model": 2}
    assert set(mesh.devices.flat) <= set(several.devices)
    whole = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P("data", "model")))
    program = jax.jit(lambda x: x @ x).lower(whole).compile()
    assert program.memory_analysis().argument_size_in_bytes == 4 * 128 * 128
    with pytest.raises(ValueError, match="a mesh of 1024 devices"):
        several.mesh((1024,), ("data",))


def test_the_users_own_card_has_its_own_numbers(h100: st.Target) -> None:
    assert h100.card is not None
    seen = []
    own = st.target(dataclasses.replace(h100.card, name="H100 NVL", memory=94 * 2**30))
    assert (own.name, own.memory) == ("H100 NVL", 94 * 2**30)
    assert own.fingerprint != h100.fingerprint
    jax.jit(lambda x: seen.append(target_of(None, x)) or x).lower(on(own.sharding))
    jax.jit(lambda x: seen.append(target_of(None, x)) or x).lower(on(h100.sharding))
    assert seen == [own, h100]
    with pytest.raises(ValueError, match=r"compute capability 3\.5 of 'K40'"):
        dataclasses.replace(h100.card, name="K40", capability=(3, 5))


# How one is found.


def test_the_default_backend_is_a_target_too() -> None:
    here = target_of()
    assert here.is_here and here.platform == "cpu" and here.devices == tuple(jax.devices())
    assert target_of(None, jnp.ones(3), None, MATRIX) is here
    assert target_of(jax.devices()) is here


def test_what_is_given_is_a_target_a_name_or_devices(card: st.Target) -> None:
    for given in (card, card.name, card.devices, card.devices[0], card.mesh((1,), ("i",))):
        assert target_of(given) is card
    assert target_of(card, jnp.ones(3)) is card
    with pytest.raises(TypeError, match='Write for example target="H100"'):
        target_of(3.0)


def test_shardings_say_it_and_so_do_types_in_a_trace_of_one_device_too(card: st.Target) -> None:
    seen = []

    def look(x: jax.Array) -> jax.Array:
        seen.append(target_of(None, x))
        return jnp.sin(x)

    assert target_of(None, on(card.sharding)) is card
    assert target_of(None, None, jax.sharding.SingleDeviceSharding(card.devices[0])) is card
    jax.jit(look).lower(on(card.sharding))
    jax.jit(jax.vmap(jax.grad(lambda x: look(x).sum()))).lower(on(card.sharding))
    assert seen == [card, card]
    jax.jit(look).lower(MATRIX)
    assert seen[2].is_here


def test_devices_that_somebody_else_made_are_a_target() -> None:
    target_or_skip("v5e:2x2")
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v6e:2x2").devices
    found = target_of(devices)
    assert (found.devices, found.name, found.memory) == (tuple(devices), "TPU v6 lite", int(31.24 * 2**30))
    assert target_of(None, on(jax.sharding.SingleDeviceSharding(devices[0]))) is found


def test_a_target_and_arguments_somewhere_else_do_not_go_together(card: st.Target) -> None:
    other = target_or_skip("A100")
    with pytest.raises(ValueError, match="the target is A100, but arguments are on"):
        target_of(other, on(card.sharding))


# What cannot be had.


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"'H10'\. Did you mean 'H100'\? The cards are 'A100', 'H100', .* 'v5e:2x2'"):
        st.target("H10")
    with pytest.raises(ValueError, match="no card is called 'v5e'"):
        st.target("v5e")
    with pytest.raises(TypeError, match="a name or a card, not 100 of type int"):
        st.target(100)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="how many cards there are, not 0"):
        st.target("H100", 0)


def test_an_unknown_topology_shows_how_they_are_named(v5e: st.Target) -> None:
    with pytest.raises(ValueError, match=r"no topology 'v9:2x2'.*'v5p:2x2x1'"):
        st.target("v9:2x2")
    with pytest.raises(ValueError, match=r"'v5e:2x2' has 4\. Leave out count=2"):
        st.target("v5e:2x2", 2)


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'statetransform\[nvidia\]'"):
        compilers.nvidia_devices("H100", "", 1)
    with pytest.raises(ImportError, match=r"pip install 'statetransform\[tpu\]'"):
        compilers.tpu_devices("v5e:2x2")


def test_a_plugin_for_another_jaxlib_is_refused_with_the_one_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"jaxlib": "0.12.3", "jax-cuda12-pjrt": "0.12.1"}
    monkeypatch.setattr(compilers, "_nvidia_plugins", lambda: ["jax_plugins.xla_cuda12"])
    monkeypatch.setattr(metadata, "version", versions.__getitem__)
    needed = "pip install jax-cuda12-pjrt==0.12.3 jax-cuda12-plugin==0.12.3"
    with pytest.raises(ImportError, match=f"jax-cuda12-pjrt 0.12.1 is for another jaxlib than 0.12.3, .*{needed}"):
        compilers.nvidia_devices("H100", "", 1)


def test_a_plugin_that_does_not_load_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with a GPU and an older cuDNN, where the check is left on."""

    def refuse(**_: object) -> None:
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(compilers, "_nvidia_plugins", lambda: ["jax_plugins.xla_cuda12"])
    monkeypatch.setattr(compilers, "_check_version", lambda wheel: None)
    monkeypatch.setattr(compilers, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(topologies, "get_topology_desc", refuse)
    with pytest.raises(RuntimeError, match=r"JAX_PLATFORMS=cpu .*, or JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1, before"):
        compilers.nvidia_devices("H100", "", 1)


def test_a_library_that_another_process_has_says_what_to_set(v5e: st.Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise jax.errors.JaxRuntimeError("ABORTED: The TPU is already in use by process with pid 1.")

    monkeypatch.setattr(topologies, "get_topology_desc", refuse)
    with pytest.raises(RuntimeError, match=r"another process has it: .*Set ALLOW_MULTIPLE_LIBTPU_LOAD=1"):
        compilers.tpu_devices("v5e:2x2")


def test_values_of_a_trace_on_devices_that_nobody_made_here_are_refused(
    h100: st.Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["statetransform._memory.targets.target"], "_known", {})
    with pytest.raises(ValueError, match="what such devices are is not known here"):
        jax.jit(lambda x: target_of(None, x) and x).lower(on(h100.sharding))


@pytest.mark.parametrize("first", ["", "import jax; jax.devices()"], ids=["nothing", "JAX was used before"])
def test_nothing_has_to_be_set_in_the_environment(first: str, card: st.Target) -> None:
    code = f"import statetransform as st; t = st.target({card.name!r}); import jax.numpy as jnp; import jax"
    code += "\nx = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=t.sharding)"
    code += "\nprint(jax.jit(lambda x: x @ x).lower(x).compile().memory_analysis().argument_size_in_bytes, jnp.ones(2))"
    done = python(f"{first}\n{code}")
    assert done.stdout == "262144 [1. 1.]\n", done.stderr
    assert first or not done.stderr


def test_two_processes_have_the_library_of_tpus_at_once(v5e: st.Target) -> None:
    done = python("import statetransform as st; print(len(st.target('v5e:2x2').devices))")
    assert done.stdout == "4\n", done.stderr


def test_the_environment_of_a_machine_with_cards_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK", *compilers._FOR_TPU}
    for name in before:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(compilers, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(compilers, "has_tpu", lambda: True)
    compilers.prepare_environment()
    assert not before & set(os.environ)


# What it needs of JAX.


def test_jax_does_not_say_in_public_whether_a_device_is_there(card: st.Target) -> None:
    assert _jax.is_there(jax.devices()[0]) and not _jax.is_there(card.devices[0])


def test_running_a_program_for_a_target_is_an_error(card: st.Target) -> None:
    program = jax.jit(jnp.sin).lower(on(card.sharding)).compile()
    with pytest.raises(AttributeError, match="local_devices"):  # JAX's own
        program(jnp.ones((256, 256)))
    scale = st.State(jnp.float32(2.0), name="scale")
    ours = transform.jit(lambda x: scale.value * x).lower(on(card.sharding)).compile()
    assert ours.memory_analysis().output_size_in_bytes == 4 * 256 * 256
    with pytest.raises(RuntimeError, match=f"for {card.devices[0].device_kind}, which is not there, so it cannot"):
        ours(jnp.ones((256, 256)))
