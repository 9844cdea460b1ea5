"""Saving: `state_dict` gives what files take, `load_state_dict` writes it back as the states hold it."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

import statetransform as st
from statetransform import Param, RandomState, State, StateStructureError, StateTraceError, inspect, transform

# -- a way through each kind of file


def by_hand(saved: dict[str, Any], folder: pathlib.Path) -> Any:
    return saved


def npz(saved: dict[str, Any], folder: pathlib.Path) -> Any:
    np.savez(folder / "model.npz", **saved)
    return np.load(folder / "model.npz")  # a lazy mapping


def safetensors(saved: dict[str, Any], folder: pathlib.Path) -> Any:
    files = pytest.importorskip("safetensors.numpy")
    files.save_file(saved, folder / "model.safetensors")
    return files.load_file(folder / "model.safetensors")


def orbax(saved: dict[str, Any], folder: pathlib.Path) -> Any:
    checkpoint = pytest.importorskip("orbax.checkpoint")
    with checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "model", saved)
        checkpointer.wait_until_finished()
        return checkpointer.restore(folder / "model")


WAYS = [by_hand, npz, safetensors, pytest.param(orbax, marks=pytest.mark.filterwarnings("ignore::UserWarning"))]


class Moments(NamedTuple):
    count: Any
    mu: dict[str, Any]


def every_pattern(name: str) -> Any:
    """All values of a dtype, NaNs with their bits included."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    if name in ("int4", "float4_e2m1fn"):
        return jnp.asarray(np.arange(-8 if name == "int4" else 0, 8)).astype(dtype)
    return jnp.asarray(np.arange(2 ** (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}").view(dtype))


LOW = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "int4", "float4_e2m1fn"]
STATICS = [
    True, False, 0, 7, -(2**70), 0.1, float("inf"), "", "train ⚡", None, (), (3, ("x", None), 0.5, float("-inf")),
    np.float32(0.1), np.int16(3),
]  # fmt: skip
VALUES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "float32": (lambda: jnp.arange(6.0).reshape(2, 3), lambda: jnp.zeros((2, 3))),
    "transposed": (lambda: jnp.arange(6.0).reshape(2, 3).T, lambda: jnp.zeros((3, 2))),
    "numpy, transposed": (lambda: np.arange(6.0).reshape(2, 3).T, lambda: np.zeros((3, 2))),
    "numpy scalar": (lambda: np.float32(0.1), lambda: np.float32(0)),
    "bool": (lambda: jnp.array([True, False]), lambda: jnp.zeros(2, bool)),
    "float16": (lambda: jnp.arange(3, dtype="float16"), lambda: jnp.zeros(3, "float16")),
    "complex64": (lambda: jnp.full(3, 1j, "complex64"), lambda: jnp.zeros(3, "complex64")),
    "weak": (lambda: jnp.asarray(3), lambda: jnp.asarray(0)),
    "Python's": (
        lambda: {"b": True, "i": 2**30, "f": 0.1, "c": 0.1j},
        lambda: {"b": False, "i": 0, "f": 0.0, "c": 0j},
    ),
    "typed key": (lambda: jax.random.key(3), lambda: jax.random.key(0)),
    "typed keys": (
        lambda: jax.random.split(jax.random.key(3), (2, 3)),
        lambda: jax.random.split(jax.random.key(0), (2, 3)),
    ),
    "rbg": (lambda: jax.random.key(3, impl="rbg"), lambda: jax.random.key(0, impl="rbg")),
    "unsafe_rbg": (lambda: jax.random.key(3, impl="unsafe_rbg"), lambda: jax.random.key(0, impl="unsafe_rbg")),
    "raw key": (lambda: jax.random.PRNGKey(3), lambda: jax.random.PRNGKey(0)),
    "pytree": (
        lambda: Moments(jnp.int32(3), {"a.b": jnp.ones(2), "c": (jnp.ones(1), None, [])}),
        lambda: Moments(jnp.int32(0), {"a.b": jnp.zeros(2), "c": (jnp.zeros(1), None, [])}),
    ),
    **{name: (lambda name=name: every_pattern(name), lambda name=name: every_pattern(name)[::-1]) for name in LOW},
    "numpy bfloat16": (lambda: np.asarray(every_pattern("bfloat16")), lambda: np.zeros(2**16, ml_dtypes.bfloat16)),
}


def same(a: Any, b: Any) -> bool:
    """Type, dtype, weak type, structure, and each bit."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    if isinstance(a, str):
        return a == b
    if isinstance(a, dict | tuple):
        return all(map(same, jax.tree.leaves(a), jax.tree.leaves(b)))
    if type(a) is not type(b) or jax.typeof(a) != jax.typeof(b) or getattr(a, "dtype", 0) != getattr(b, "dtype", 0):
        return False
    is_key = jnp.issubdtype(jax.typeof(a).dtype, jax.dtypes.prng_key)
    return (
        np.asarray(jax.random.key_data(a) if is_key else a).tobytes()
        == np.asarray(jax.random.key_data(b) if is_key else b).tobytes()
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_exactly(name: str, way: Any, tmp_path: pathlib.Path) -> None:
    value, other = VALUES[name]
    if name == "Python's" and way is safetensors:
        pytest.skip("safetensors knows no complex128")
    model, fresh = {"layers": [{"w": State(value())}]}, {"layers": [{"w": State(other())}]}
    saved = st.state_dict(model)
    assert all(type(array) is np.ndarray and array.dtype.kind in "biufc" for array in saved.values())
    assert not same(fresh["layers"][0]["w"].value, value())
    assert st.load_state_dict(fresh, way(saved, tmp_path)) == ([], [])
    assert same(fresh["layers"][0]["w"].value, model["layers"][0]["w"].value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", STATICS, ids=repr)
def test_a_static_value_comes_back_as_the_python_value_that_it_was(
    value: Any, way: Any, tmp_path: pathlib.Path
) -> None:
    model, fresh = {"mode": State(value, static=True)}, {"mode": State("another", static=True)}
    st.load_state_dict(fresh, way(st.state_dict(model), tmp_path))
    assert (type(fresh["mode"].value), fresh["mode"].value) == (type(value), value)


class Network:
    def __init__(self, seed: int) -> None:
        self.rng = RandomState(seed, name="rng")
        self.w = [Param(jax.random.normal(self.rng.split(), (3, 3)), name=f"w{i}") for i in range(2)]
        self.is_training = State(True, static=True, name="is_training")
        self.optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.linear_schedule(0.1, 0.0, 100)))
        self.moments = State(self.optimizer.init(st.values(self.w)), name="moments")

    def loss(self, x: Any) -> Any:
        for w in self.w:
            x = jnp.tanh(x @ w.value)
            if self.is_training.value:
                x = x * jax.random.bernoulli(self.rng.split(), 0.9, x.shape)
        return (x**2).sum()

    @transform.jit
    def step(self, x: Any) -> Any:
        loss, slopes = transform.value_and_grad(self.loss, states=self.w)(x)
        updates, self.moments.value = self.optimizer.update(slopes, self.moments.value)
        st.update(self.w, optax.apply_updates(st.values(self.w), updates))
        return loss


@pytest.mark.parametrize("way", WAYS)
def test_a_training_goes_on_where_it_was_saved(way: Any, tmp_path: pathlib.Path) -> None:
    x = jnp.ones((4, 3))
    network = Network(0)
    for _ in range(3):
        network.step(x)
    saved = st.state_dict(network)
    assert {"rng", "w.0", "w.1", "is_training", "moments.1.0.mu.0", "moments.1.0.count", "moments.1.1.count"} <= set(
        saved
    )
    losses = [float(network.step(x)) for _ in range(3)]
    fresh = Network(1)
    fresh.step(x)
    fresh.is_training.value = False
    traces = len(inspect.explain_retrace(fresh.step))
    st.load_state_dict(fresh, way(saved, tmp_path))
    assert fresh.is_training.value is True
    assert [float(fresh.step(x)) for _ in range(3)] == losses
    assert len(inspect.explain_retrace(fresh.step)) == traces  # the types are those that it had


def test_what_is_loaded_is_no_retrace_for_a_weak_type() -> None:
    count = State(0, name="count")

    @transform.jit
    def step() -> None:
        count.value = count.value + 1

    step()
    step()
    traces = len(inspect.explain_retrace(step))
    st.load_state_dict({"count": count}, st.state_dict({"count": count}))
    step()
    assert (int(count.value), len(inspect.explain_retrace(step))) == (3, traces)


def test_only_states_of_the_given_kinds_are_saved_and_a_part_is_loaded_by_its_states() -> None:
    model = {"w": Param(jnp.ones(2)), "n": State(0), "rng": RandomState(0)}
    saved = st.state_dict(model, Param)
    assert list(saved) == ["w"]
    model["w"].value = jnp.zeros(2)
    with pytest.raises(StateStructureError, match=r"(?s)missing +: 'n', 'rng'\n"):
        st.load_state_dict(model, saved)
    assert float(model["w"].value.sum()) == 0.0
    st.load_state_dict(st.states(model, Param), saved)
    assert float(model["w"].value.sum()) == 2.0
    assert list(st.state_dict(model, Param, lambda state: state is model["n"])) == ["w", "n"]


def test_a_single_state_and_shared_states() -> None:
    w = State(jnp.ones(2))
    assert list(st.state_dict(w)) == [""] and list(st.state_dict([w, w, {"again": w}])) == ["0"]
    assert st.state_dict({"a": [1, None]}) == {}
    st.load_state_dict(w, {"": np.full(2, 3.0)})
    assert w.value.tolist() == [3.0, 3.0]


def test_missing_and_unexpected_are_an_error_that_lists_only_them_or_are_returned() -> None:
    model = {f"layer{i}": State(jnp.float32(i)) for i in range(300)}
    saved = st.state_dict(model)
    part = {**saved, "layer300": np.float32(1)}
    del part["layer7"]
    st.update(model, {path: jnp.float32(-1) for path in model})
    with pytest.raises(StateStructureError) as caught:
        st.load_state_dict(model, part)
    assert "missing    : 'layer7'\n  unexpected : 'layer300'\n" in str(caught.value)
    assert "strict=False" in str(caught.value) and len(str(caught.value)) < 300
    assert all(state.value == -1 for state in model.values())
    missing, unexpected = found = st.load_state_dict(model, part, strict=False)
    assert (missing, unexpected) == (["layer7"], ["layer300"]) == (found.missing, found.unexpected)
    assert [float(model[path].value) for path in ("layer6", "layer7", "layer8")] == [6, -1, 8]
    with pytest.raises(StateStructureError, match="and 290 more") as caught:
        st.load_state_dict(model, {})
    assert len(str(caught.value)) < 400


def test_a_part_of_a_pytree_is_loaded_leaf_by_leaf() -> None:
    moments = State(Moments(jnp.int32(0), {"a": jnp.zeros(2), "b": jnp.zeros(2)}))
    found = st.load_state_dict({"m": moments}, {"m.mu.b": np.ones(2, np.float32)}, strict=False)
    assert found.missing == ["m.count", "m.mu.a"]
    assert jax.tree.map(lambda x: x.sum().item(), moments.value) == (0, {"a": 0.0, "b": 2.0})


@pytest.mark.parametrize("around", [transform.jit, jax.jit, transform.grad, transform.vmap, transform.checkpoint])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("state_dict", lambda model: st.state_dict(model)),
        ("load_state_dict", lambda model: st.load_state_dict(model, {"w": 1.0})),
    ],
)
def test_inside_a_trace_there_is_nothing_to_save(name: str, call: Any, around: Any) -> None:
    model = {"w": State(jnp.float32(3))}

    def inside(x: Any) -> Any:
        call(model)
        return x.sum()

    with pytest.raises(StateTraceError, match=rf"{name}: called while JAX traces a function.*\nCall it after"):
        around(inside)(jnp.ones(2))
    assert model["w"].value == 3.0


def test_a_host_callback_saves_what_the_states_had_before_the_call() -> None:
    model, kept = {"w": State(jnp.float32(3))}, list[Any]()

    @transform.jit
    def step() -> None:
        jax.debug.callback(lambda: kept.append(st.state_dict(model)))

    step()
    jax.effects_barrier()
    assert kept[0]["w"] == 3.0


def test_an_evaluation_of_a_checkpoint_leaves_no_trace_under_discard_writes() -> None:
    model = {"w": State(jnp.float32(3))}
    saved = {"w": np.float32(5)}

    def evaluate() -> Any:
        st.load_state_dict(model, saved)
        return model["w"].value * 2

    assert transform.discard_writes(evaluate)() == 10.0
    assert model["w"].value == 3.0


def test_saved_arrays_are_copies_and_so_are_loaded_ones() -> None:
    model = {"w": State(jnp.arange(4.0)), "n": State(np.arange(4.0))}
    saved = st.state_dict(model)

    @transform.jit(donate_states=True)
    def step() -> None:
        model["w"].value = model["w"].value + 1

    step()
    assert saved["w"].tolist() == [0, 1, 2, 3]
    saved["n"][0] = 9
    assert model["n"].value[0] == 0
    given = {"w": np.zeros(1024, np.float32), "n": np.zeros(4)}
    model["w"] = State(jnp.ones(1024))
    st.load_state_dict(model, given)
    given["w"][:], given["n"][:] = 7, 7
    step()
    assert model["w"].value.tolist() == [1] * 1024 and given["w"][0] == 7 and not model["n"].value.any()


def test_a_state_that_was_donated_is_loaded_but_not_saved() -> None:
    model = {"w": State(jax.device_put(jnp.arange(4.0), jax.devices()[0]), name="w"), "key": RandomState(0)}
    saved = st.state_dict(model)
    model["w"].value.delete()
    with pytest.raises(ValueError, match=r"state_dict: State 'w' .* holds an array that was deleted"):
        st.state_dict(model)
    st.load_state_dict(model, saved)
    assert model["w"].value.tolist() == [0, 1, 2, 3]


def test_values_stay_on_the_devices_where_they_are() -> None:
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    sharding = jax.sharding.NamedSharding(mesh, jax.P("x"))
    key = jax.device_put(jax.random.split(jax.random.key(0), 2), sharding)
    model = {"w": State(jax.device_put(jnp.arange(4.0), sharding)), "b": State(jnp.zeros(2)), "key": State(key)}
    saved = st.state_dict(model)
    for given in (saved, st.values(model)):
        st.load_state_dict(model, dict(given))
        assert (model["w"].value.sharding, model["key"].value.sharding) == (sharding, sharding)
        assert model["w"].value.committed and not model["b"].value.committed


def test_values_of_jax_are_taken_as_numpys_are() -> None:
    model = {
        "w": State(jnp.zeros(2, "bfloat16")),
        "rng": RandomState(0),
        "mode": State("a", static=True),
        "n": State(0),
    }
    other = {"w": State(jnp.ones(2, "bfloat16")), "rng": RandomState(5), "mode": State("b", static=True), "n": State(3)}
    st.load_state_dict(model, st.values(other))
    assert all(same(a, b) for a, b in zip(st.values(model).values(), st.values(other).values(), strict=True))
    st.load_state_dict(model, jax.tree.map(jnp.asarray, st.state_dict(other)))
    assert all(same(a, b) for a, b in zip(st.values(model).values(), st.values(other).values(), strict=True))


def test_a_model_of_types_only_is_filled_and_has_nothing_to_save() -> None:
    model = {"w": State(jax.ShapeDtypeStruct((2,), jnp.bfloat16), name="w")}
    with pytest.raises(ValueError, match=r"State 'w' .* has a type only"):
        st.state_dict(model)
    st.load_state_dict(model, st.state_dict({"w": State(jnp.ones(2, "bfloat16"))}))
    assert same(model["w"].value, jnp.ones(2, "bfloat16"))


def test_another_byte_order_is_no_other_type() -> None:
    model = {"w": State(jnp.zeros(3)), "n": State(np.zeros(3))}
    st.load_state_dict(model, {"w": np.arange(3, dtype=">f4"), "n": np.arange(3, dtype=">f8")})
    assert same(st.values(model), {"w": jnp.arange(3.0), "n": np.arange(3.0)})


def test_a_narrower_or_wider_number_of_python_is_taken() -> None:
    model = {"n": State(0), "x": State(0.0), "i": State(jnp.int32(0))}
    st.load_state_dict(model, {"n": np.int32(3), "x": jnp.float32(0.5), "i": np.int64(4)})
    assert same(st.values(model), {"n": 3, "x": 0.5, "i": jnp.int32(4)})
