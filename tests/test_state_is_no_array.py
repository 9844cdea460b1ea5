"""A state in the place of its value, kinds that are no kinds, and slips in the making of a state."""

from __future__ import annotations

import abc
import copy
import dataclasses
import inspect
import operator
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import Param, RandomState, State, transform

ONES = jnp.ones(3)
BINARY = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor")
COMPARED = ("lt", "le", "gt", "ge")
UNARY = (
    *("bool", "int", "float", "complex", "len", "abs", "round", "hex"),
    *("neg", "pos", "invert", "index"),
)
USES: dict[str, Callable[[State], Any]] = {
    **{f"state {name} 1": lambda s, name=name: getattr(operator, name)(s, 1) for name in (*BINARY, *COMPARED)},
    **{f"1 {name} state": lambda s, name=name: getattr(operator, name)(1, s) for name in (*BINARY, *COMPARED)},
    **{f"array {name} state": lambda s, name=name: getattr(operator, name)(ONES, s) for name in (*BINARY, *COMPARED)},
    **{f"numpy {name} state": lambda s, name=name: getattr(operator, name)(np.ones(3), s) for name in ("add", "lt")},
    **{
        f"{name}(state)": lambda s, name=name: (getattr(operator, name, None) or __builtins__[name])(s)  # type: ignore[index]
        for name in UNARY
    },
    "divmod": lambda s: divmod(s, 2),
    "if": lambda s: 1 if s else 0,
    "not": lambda s: not s,
    "and": lambda s: s and 1,
    "np.array": np.array,
    "np.asarray": np.asarray,
    "np.sin": np.sin,
    "np.mean": np.mean,
    "jnp.asarray": jnp.asarray,
    "in place": lambda s: operator.iadd(s, 1),
}


def test_a_state_in_the_place_of_its_value_says_to_write_value(wrap: Any) -> None:
    s = State(ONES, name="u")
    said = r"State 'u' \(created at test_state_is_no_array.py:\d+\) is not an array, but .*`\.value`"
    for use in USES.values():
        with pytest.raises(TypeError, match=said):
            wrap(lambda use=use: use(s))()


OF_JAX: dict[str, Callable[[Any], Any]] = {
    "jnp.sin": jnp.sin,
    "jnp.sum": jnp.sum,
    "jnp.add": lambda s: jnp.add(s, 1),
    "jnp.dot": lambda s: jnp.dot(ONES, s),
    "jnp.stack": lambda s: jnp.stack([s, s]),
    "jnp.where": lambda s: jnp.where(True, s, 0.0),
    "jax.nn.relu": jax.nn.relu,
    "jax.lax.sin": jax.lax.sin,
    "jax.jit": jax.jit(lambda x: x),
    "in a container": lambda s: jax.jit(lambda x: x)({"a": [s]}),
    "jax.grad": jax.grad(lambda x: x),
    "jax.device_put": jax.device_put,
}


@pytest.mark.parametrize("kind", [State, Param])
def test_a_state_given_to_a_function_of_jax_says_to_write_value(kind: Any, wrap: Any, capfd: Any) -> None:
    s, said = kind(ONES, name="u"), rf"statetransform\.{kind.__name__}'> \(a state is not an array: write `\.value`"
    for use in OF_JAX.values():
        with pytest.raises(TypeError, match=said):
            wrap(lambda use=use: use(s))()
    assert capfd.readouterr().err == ""


def test_the_class_of_a_state_is_shown_as_ever_but_in_an_f_string() -> None:
    assert repr(State) == str(State) == "<class 'statetransform.State'>"


@pytest.mark.parametrize("use", [bool, lambda rng: rng + 1, np.array])
def test_a_random_state_in_the_place_of_a_key_says_to_split(use: Any) -> None:
    with pytest.raises(TypeError, match=r"RandomState 'rng' .* Write `rng\.split\(\)`"):
        use(RandomState(0, name="rng"))


@pytest.mark.parametrize("use", [jax.random.uniform, jax.random.split, jnp.sin])
def test_a_random_state_given_to_a_function_of_jax_says_to_split(use: Any) -> None:
    with pytest.raises(TypeError, match=r"RandomState'> .*write `rng\.split\(\)`"):
        use(RandomState(0, name="rng"))


ATTRIBUTES = ("shape", "dtype", "ndim", "size", "at", "T", "sum", "astype", "sharding", "block_until_ready")


def test_an_attribute_of_the_value_is_an_attribute_error_that_says_where_it_is() -> None:
    s = State(ONES, name="u")
    for name in ATTRIBUTES:
        with pytest.raises(AttributeError, match=rf"State 'u' .* Write `\.value\.{name}`"):
            getattr(s, name)
        assert not hasattr(s, name) and not hasattr(State, name) and name not in dir(s)


def test_identity_hash_and_equality_are_those_of_objects() -> None:
    a, b = State(1.0), State(1.0)
    assert (a == a, a == b, a != b, a == None) == (True, False, True, False)  # noqa: E711
    assert jax.tree.leaves({"x": [a, b]}) == [a, b]
    assert len({a, b}) == 2 and hash(a) == object.__hash__(a) and a in [b, a]
    assert [name for name, _ in inspect.getmembers(a) if name == "value"] == ["value"]


@pytest.mark.parametrize("other", [1.0, 1, True, "train"])
def test_a_comparison_with_a_number_or_text_says_to_write_value(other: Any, wrap: Any) -> None:
    s = State(1.0, name="u")
    for compare, expected in ((operator.eq, False), (operator.ne, True)):
        with pytest.warns(UserWarning, match=r"State 'u' .* is compared with .*never equal.*`\.value`") as caught:
            assert wrap(lambda c=compare, e=expected: 1.0 * (c(s, other) is e))() == 1.0
        assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("other", [np.float32(1), np.ones(3), ONES])
def test_a_comparison_with_an_array_is_a_type_error(other: Any) -> None:
    with pytest.raises(TypeError, match=r"write `\.value`|Write `\.value`"):
        _ = State(1.0, name="u") == other
    with pytest.raises(TypeError, match=r"write `\.value`|Write `\.value`"):
        _ = other == State(1.0, name="u")


def test_a_format_of_the_value_says_to_write_value() -> None:
    s = State(1.0, name="u")
    assert f"{s}" == str(s) == "State(1.0, name='u')"
    with pytest.raises(TypeError, match=r"State 'u' .* cannot be formatted with '\.2f'.*`\{u\.value:\.2f\}`"):
        f"{s:.2f}"


def test_a_kind_that_does_not_initialize_the_state_is_refused() -> None:
    class Membrane(State):
        def __init__(self, n: int) -> None:
            self.n = n

    with pytest.raises(TypeError, match=r"Membrane\.__init__ does not initialize.*`super\(\)\.__init__\(value\)`"):
        Membrane(3)


def test_a_kind_may_be_abstract() -> None:
    class Kind(State, abc.ABC):
        @abc.abstractmethod
        def unit(self) -> str: ...

    with pytest.raises(TypeError, match="abstract"):
        Kind(1.0)  # type: ignore[abstract]
    assert isinstance(type("Length", (Kind,), {"unit": lambda self: "m"})(1.0), State)


def test_a_subclass_may_define_operations_and_attributes_of_its_own() -> None:
    class Quantity(State):
        __slots__ = ("dtype",)

        def __add__(self, other: Any) -> Any:
            return self.value + other

        def __bool__(self) -> bool:
            return True

    class Open(State):
        pass

    q, o = Quantity(1.0), Open(1.0)
    q.dtype, o.shape = "km", "round"  # type: ignore[attr-defined]
    assert (q + 1.0, bool(q), q.dtype, o.shape) == (2.0, True, "km", "round")  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"`\.value`"):
        q - 1.0


class Equal:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "define",
    [
        lambda: type("A", (State,), {"__eq__": lambda self, other: True, "__hash__": lambda self: 1}),
        lambda: type("A", (Param,), {"__hash__": lambda self: 1}),
        lambda: type("A", (Equal, State), {}),
        lambda: type("A", (State,), {"__hash__": None}),
    ],
    ids=["both", "hash", "inherited", "unhashable"],
)
def test_a_kind_with_an_equality_of_its_own_is_refused_where_it_is_defined(define: Any) -> None:
    with pytest.raises(TypeError, match=r"A defines `__(eq|hash)__`, but states are told apart by identity"):
        define()


def test_a_dataclass_of_states_is_told_apart_by_identity() -> None:
    @dataclasses.dataclass
    class Membrane(State):
        start: float = 0.0

        def __post_init__(self) -> None:
            super().__init__(jnp.full(2, self.start), name="v")

    a, b = Membrane(1.0), Membrane(1.0)
    assert a != b and len({a, b}) == 2

    @transform.jit
    def step() -> Any:
        a.value, b.value = a.value + 1, b.value + 10
        return a.value + b.value

    assert step().tolist() == [13.0, 13.0]
    assert (a.value.tolist(), b.value.tolist()) == ([2.0, 2.0], [11.0, 11.0])
    assert copy.deepcopy(a).start == 1.0


class Private(State):
    __slots__ = "__secret"

    def keep(self, secret: Any) -> None:
        self.__secret = secret

    def tell(self) -> Any:
        return self.__secret


class Unit(Private):
    __slots__ = ("scale", "unit")


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["copy", "deepcopy", "pickle"]
)
def test_a_copy_keeps_the_slots_of_subclasses(clone: Any) -> None:
    s = Unit(1.0)
    s.unit = "m"
    s.keep([1])
    new = clone(s)
    assert (new.unit, new.tell(), hasattr(new, "scale")) == ("m", [1], False)
    assert (new.tell() is s.tell()) is (clone is copy.copy)


def test_a_state_made_under_jit_has_its_slots_at_every_call() -> None:
    @transform.jit
    def make(x: Any) -> Any:
        s = Unit(x)
        s.unit = "m"
        s.keep("k")
        return {"s": s}

    for x in (1.0, 2.0, 3.0):
        s = make(x)["s"]
        assert (float(s.value), s.unit, s.tell()) == (x, "m", "k")


SLIPS = ("nme", "nmae", "naem", "Name", "nname", "NAME", "sttic", "Static", "statci", "statiic")
WORDS = ("names", "mean", "same", "state", "stats", "statistics", "n", "namespace", "unit", "axis_name", "atomic")


@pytest.mark.parametrize("kind", [State, Param, RandomState])
def test_a_slip_in_an_option_is_kept_as_metadata_and_spoken_of(kind: Any) -> None:
    for word in SLIPS:
        meant = "name" if word.lower().startswith("n") else "static"
        with pytest.warns(UserWarning, match=f"`{word}` is kept as metadata. If `{meant}` was meant") as caught:
            s = kind(0, **{word: "u"})
        assert dict(s.metadata) == {word: "u"}
        assert kind is RandomState or caught[0].filename == __file__


def test_other_metadata_is_nobodys_slip_and_a_copy_does_not_speak_again() -> None:
    with pytest.warns(UserWarning, match="`nme`"):
        slip = State(1.0, nme="u")
    for s in (slip, *[State(1.0, **{word: "u"}) for word in WORDS]):  # a warning would be an error
        for clone in (copy.copy(s), copy.deepcopy(s), pickle.loads(pickle.dumps(s))):
            assert dict(clone.metadata) == dict(s.metadata)


def test_a_kind_with_a_type_argument_is_the_kind() -> None:
    s = State[jax.Array](ONES, name="u")
    p = Param[float](1.0)
    assert type(s) is State and type(p) is Param
    assert st.states({"s": s, "p": p}, Param) == {"p": p}

    class Typed(State[jax.Array]):
        pass

    assert isinstance(Typed(ONES), State)
