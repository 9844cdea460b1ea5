"""Kinds of cells: how one of each is made, read and written."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import statetransform as st


class Plain:
    def __init__(self, n: Any) -> None:
        self.n = n

    def step(self, x: Any) -> Any:
        self.n = self.n * x
        return jnp.sum(jnp.sin(self.n))


class Slotted:
    __slots__ = ("n",)

    def __init__(self, n: Any) -> None:
        self.n = n

    step = Plain.step


@dataclasses.dataclass
class Record:
    n: Any = 0.0
    step = Plain.step


@dataclasses.dataclass(frozen=True)
class Frozen:
    n: Any = 0.0

    def step(self, x: Any) -> Any:
        st.attr(self, "n").value = self.n * x
        return jnp.sum(jnp.sin(self.n))


class ByProperty:
    def __init__(self, n: Any) -> None:
        self._n = n

    @property
    def n(self) -> Any:
        return self._n

    @n.setter
    def n(self, n: Any) -> None:
        self._n = n

    step = Plain.step


class Registered(Plain):
    pass


class RegisteredByProperty(ByProperty):
    pass


st.register_state_type(Registered, attribute="n")
st.register_state_type(RegisteredByProperty, attribute="n")

OF_OBJECTS = [Plain, Slotted, Record, Frozen, ByProperty]
OF_CLASSES = [Registered, RegisteredByProperty]
KINDS = [*OF_OBJECTS, *OF_CLASSES]


def make(kind: type, n: Any) -> Any:
    obj = kind(n)
    if kind in OF_OBJECTS:
        st.attr(obj, "n")
    return obj


def handle(obj: Any) -> Any:
    return st.attr(obj, "n") if type(obj) in OF_OBJECTS else next(iter(st.states(obj).values()))


class Kind(NamedTuple):
    make: Callable[[Any], Any]
    get: Callable[[Any], Any]
    put: Callable[[Any, Any], Any]


def _of_attributes(kind: type) -> Kind:
    if kind is Frozen:
        return Kind(functools.partial(make, kind), lambda c: c.n, lambda c, v: setattr(handle(c), "value", v))
    return Kind(functools.partial(make, kind), lambda c: c.n, lambda c, v: setattr(c, "n", v))


_VALUE = (lambda c: c.value, lambda c, v: setattr(c, "value", v))
ROWS = {
    "state": Kind(st.State, *_VALUE),
    "ref": Kind(jax.new_ref, lambda c: c[...], lambda c, v: c.__setitem__(..., v)),
    "ref by functions": Kind(jax.new_ref, lambda c: jax.ref.get(c), lambda c, v: jax.ref.set(c, ..., v)),
    **{kind.__name__: _of_attributes(kind) for kind in KINDS},
}
if importlib.util.find_spec("brainstate"):
    import brainstate

    ROWS["brainstate"] = Kind(brainstate.State, *_VALUE)
if importlib.util.find_spec("flax"):
    from .modules import HIJAX, REF, nnx

    for _name, _options in {"": {}, "-hijax": HIJAX, "-ref": REF, "-both": HIJAX | REF}.items():
        _make = functools.partial(nnx.Variable, **_options)
        ROWS[f"nnx{_name}"] = Kind(_make, lambda c: c[...], lambda c, v: c.set_value(v))
