"""What `state_dict` and `load_state_dict` refuse: by path, with both types, and nothing is written."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import State, StateStructureError

MISFITS = {
    "shape": (jnp.ones(3), np.ones(4, np.float32), r"float32\[3\], and the value is float32\[4\]"),
    "kind": (jnp.ones(3), np.ones(3, np.int32), r"float32\[3\], and the value is int32\[3\]"),
    "precision": (jnp.ones(3, "bfloat16"), np.ones(3, np.float32), r"bfloat16\[3\], and the value is float32\[3\]"),
    "half": (jnp.ones(3), np.ones(3, np.float16), r"float32\[3\], and the value is float16\[3\]"),
    "too large": (jnp.ones((), "int32"), np.int64(2**40), r"int32\[\], and the value is int64\[\]"),
    "truth": (jnp.ones(3, bool), np.ones(3, np.uint8), r"bool\[3\], and the value is uint8\[3\]"),
    "text": (jnp.ones(()), np.asarray("text"), r"float32\[\], and the value is <U4\[\]"),
    "object": (jnp.ones(()), np.asarray(None), r"float32\[\], and the value is object\[\]"),
    "Python's": (0, np.asarray(0.5), r"int32\[\], and the value is float64\[\]"),
    "another key": (jax.random.key(0), np.zeros(4, np.uint32), r"key<fry>\[\], and the value is uint32\[4\]"),
    "key of another kind": (jax.random.key(0), jax.random.key(0, impl="rbg"), r"key<fry>\[\], .* key<rbg>\[\]"),
    "a key for an array": (jnp.ones(()), jax.random.key(0), r"float32\[\], and the value is key<fry>\[\]"),
    "an array for a key": (jax.random.key(0), np.ones(2, np.float32), r"key<fry>\[\], and the value is float32\[2\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_named_with_both_types_and_nothing_is_written(name: str) -> None:
    held, given, said = MISFITS[name]
    model = {"first": State(jnp.zeros(2)), "w": State(held), "mode": State(True, static=True)}
    for strict in (True, False):
        with pytest.raises(StateStructureError, match=rf"'w': the state holds {said}"):
            st.load_state_dict(model, {"first": np.ones(2, np.float32), "mode": False, "w": given}, strict=strict)
        assert model["mode"].value is True and model["w"].value is held and not model["first"].value.any()


def test_every_misfit_is_listed() -> None:
    model = {f"w{i}": State(jnp.zeros(2)) for i in range(30)}
    with pytest.raises(StateStructureError, match=r"(?s)'w0': .*'w9': .*\n  and 20 more") as caught:
        st.load_state_dict(model, {path: np.zeros(3, np.float32) for path in model})
    assert "'w10'" not in str(caught.value)


def test_an_array_is_no_static_value_and_a_static_value_is_hashable() -> None:
    model = {"w": State(0.0), "mode": State("a", static=True)}
    with pytest.raises(StateStructureError, match=r"'mode': the state is static, and float32\[3\] is no saved static"):
        st.load_state_dict(model, {"w": 1.0, "mode": np.ones(3, np.float32)})
    with pytest.raises(StateStructureError, match=r"uint8\[2\] is no saved static value"):
        st.load_state_dict(model, {"w": 1.0, "mode": np.array([255, 3], np.uint8)})
    with pytest.raises(TypeError, match="type list is not hashable"):
        st.load_state_dict(model, {"w": 1.0, "mode": [1]})
    assert st.values(model) == {"w": 0.0, "mode": "a"}
    st.load_state_dict(model, {"w": 1.0, "mode": np.asarray("b")})  # as NumPy saves text
    assert st.values(model) == {"w": 1.0, "mode": "b"}


@pytest.mark.parametrize("value", [len, frozenset([1]), (1, len), b"bytes", jnp.float32], ids=repr)
def test_a_static_value_without_a_form_is_named(value: Any) -> None:
    model = {"w": State(0.0), "mode": State(value, static=True, name="mode")}
    with pytest.raises(TypeError, match=r"State 'mode' \(created at .*\) is static and holds .* files have no form"):
        st.state_dict(model)
    assert list(st.state_dict(model, lambda state: not state.static)) == ["w"]


def test_two_entries_of_one_path_are_refused() -> None:
    model = {"a": State({"b": 1.0}, name="x"), "a.b": State(2.0, name="y")}
    for call in (lambda: st.state_dict(model), lambda: st.load_state_dict(model, {})):
        with pytest.raises(ValueError, match=r"State 'x' .* and State 'y' .* an entry of the same path, 'a.b'"):
            call()


@pytest.mark.parametrize("values", ["model.npz", None, [1.0], np.ones(3)], ids=repr)
def test_what_is_no_mapping_is_refused(values: Any) -> None:
    with pytest.raises(TypeError, match=r"expected a mapping from path to array, .*numpy.load\(path\)"):
        st.load_state_dict({"w": State(0.0)}, values)
