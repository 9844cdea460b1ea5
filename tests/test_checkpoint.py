"""`checkpoint`: what is saved, what is recomputed, and what becomes of a class."""

from __future__ import annotations

import concurrent.futures
import copy
import functools
import pickle
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import statetransform as st
from statetransform import Param, State, transform

POLICIES = jax.checkpoint_policies


def saved(fun: Any, *args: Any) -> list[tuple[Any, ...]]:
    """Types of what reverse mode keeps, from JAX's own pullback."""
    _, pull = jax.vjp(fun, *args)
    return sorted((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(pull))


class Deep:
    def __init__(self) -> None:
        self.w = [Param(jnp.eye(4) * (i + 1), name=f"w{i}") for i in range(3)]
        self.n = State(jnp.int32(0), name="n")

    def __call__(self, x: Any) -> Any:
        self.n.value = self.n.value + 1
        for i, w in enumerate(self.w):
            x = checkpoint_name(jnp.sin(w.value @ x), f"layer{i}")
        return x.sum()


def twin(values: Any, x: Any) -> Any:
    *ws, n = values
    for i, w in enumerate(ws):
        x = checkpoint_name(jnp.sin(w @ x), f"layer{i}")
    return x.sum(), (*ws, n + 1)


@pytest.mark.parametrize(
    "policy",
    [
        None,
        POLICIES.everything_saveable,
        POLICIES.nothing_saveable,
        POLICIES.dots_saveable,
        POLICIES.dots_with_no_batch_dims_saveable,
        POLICIES.save_only_these_names("layer1"),
        POLICIES.save_any_names_but_these("layer0"),
        POLICIES.save_from_both_policies(POLICIES.dots_saveable, POLICIES.save_only_these_names("layer2")),
    ],
    ids=["none", "everything", "nothing", "dots", "dots without batch", "names", "all names but", "both"],
)
def test_a_policy_saves_what_it_saves_in_the_twin(policy: Any) -> None:
    model, x = Deep(), jnp.ones(4)
    fun = transform.functionalize(transform.checkpoint(model, policy=policy))
    values = fun.values(x)
    pure = jax.checkpoint(twin, policy=policy)
    reference = tuple(s.value for s in (*model.w, model.n))
    ours = saved(lambda ws, x: fun.apply({**values, **dict(zip(model.w, ws, strict=True))}, x)[0], reference[:3], x)
    theirs = saved(lambda ws, x: pure((*ws, reference[3]), x)[0], reference[:3], x)
    assert ours == theirs
    assert model.n.value == 0


def test_recomputation_is_counted_by_the_hardware_and_not_by_the_states() -> None:
    n, calls, reference = State(jnp.int32(0), name="n"), list[int](), list[int]()

    def twin(n: Any, x: Any, seen: list[int] = reference) -> Any:
        jax.debug.callback(lambda: seen.append(1))
        return jnp.sin(jnp.sin(x)) * (n + 1), n + 1

    @transform.checkpoint
    def f(x: Any) -> Any:
        out, n.value = twin(n.value, x, calls)
        return out

    g, pure = transform.jit(transform.grad(f)), jax.jit(jax.grad(jax.checkpoint(twin), argnums=1, has_aux=True))
    for i in range(1, 3):
        g(1.0), pure(1.0, 1.0)
        jax.effects_barrier()
        assert n.value == i
        assert calls == reference


def test_states_limits_the_lift_to_states_kinds_or_a_predicate() -> None:
    w, u = Param(jnp.float32(2), name="w"), State(jnp.float32(3), name="u")
    f = lambda x: w.value * u.value * x
    for states in (w, [w], {"w": w}, Param, lambda s: s.name == "w", st.states({"w": w})):
        g = transform.checkpoint(f, states=states)
        assert g(1.0) == 6.0
        assert transform.grad(g, states=w)(1.0) == 3.0
        u.value, w.value = jnp.float32(5), jnp.float32(7)
        assert g(1.0) == 35.0
        u.value, w.value = jnp.float32(3), jnp.float32(2)

    def write(x: Any) -> Any:
        w.value = w.value + x
        u.value = u.value + x
        return x

    with pytest.raises(st.StateTraceError, match="State 'u'"):
        transform.checkpoint(write, states=Param)(1.0)
    assert (w.value, u.value) == (2.0, 3.0)
    with pytest.raises(TypeError, match="select"):
        transform.checkpoint(f, states="w")


RUNS: list[int] = []  # of the methods of a layer


class Layer:
    """A layer."""

    def __init__(self, size: int) -> None:
        self.w = Param(jnp.ones(size), name="w")

    def __call__(self, x: Any) -> Any:
        RUNS.append(1)
        return jnp.sin(self.w.value * x).sum()

    def step(self, x: Any) -> Any:
        RUNS.append(2)
        self.w.value = self.w.value + x
        return self.w.value.sum()

    @classmethod
    def make(cls, size: int) -> Any:
        return cls(size)


def test_a_class_becomes_a_subclass_of_the_same_name() -> None:
    cls = transform.checkpoint(Layer)
    assert issubclass(cls, Layer)
    assert (cls.__name__, cls.__qualname__, cls.__doc__, cls.__module__) == ("Layer", "Layer", "A layer.", __name__)
    layer = cls(3)
    RUNS.clear()
    assert isinstance(layer, Layer)
    assert isinstance(cls.make(3), cls)
    for _ in range(3):
        layer(1.0)
    assert RUNS == [1]
    layer.step(1.0), layer.step(1.0)
    assert RUNS == [1, 2, 2]
    assert [eqn for eqn in jax.make_jaxpr(layer)(1.0).jaxpr.eqns if "prevent_cse" in eqn.params]


def test_the_methods_of_a_class_are_chosen_by_name() -> None:
    for cls in (transform.checkpoint(Layer, methods=["step"]), transform.checkpoint(methods="step")(Layer)):
        layer = cls(2)
        RUNS.clear()
        assert (layer.step(1.0), layer.step(1.0), RUNS) == (4.0, 6.0, [2])
    with pytest.raises(AttributeError, match=r"Layer has no method 'stop'.*methods="):
        transform.checkpoint(Layer, methods=["stop"])
    with pytest.raises(AttributeError, match=r"Model has no method '__call__'.*methods="):
        transform.checkpoint(type("Model", (), {}))
    with pytest.raises(TypeError, match="class"):
        transform.checkpoint(lambda x: x, methods=["step"])
    for methods in (3, [3]):
        with pytest.raises(TypeError, match="`methods` must be the name of a method"):
            transform.checkpoint(Layer, methods=methods)


def test_options_on_a_class_are_those_of_its_methods() -> None:
    @transform.checkpoint(static_argnums=(1,))
    class Power:
        def __init__(self, start: float) -> None:
            self.start = State(start)

        def __call__(self, x: Any, n: int) -> Any:
            return self.start.value * x**n if n > 1 else x

    assert Power(2.0)(3.0, 2) == 18.0
    assert transform.grad(Power(2.0))(3.0, 2) == 12.0


def test_super_works_in_and_on_a_checkpointed_class() -> None:
    class Base:
        def __init__(self) -> None:
            self.n = State(jnp.int32(0), name="n")

        def __call__(self, x: Any) -> Any:
            self.n.value = self.n.value + 1
            return x * 2.0

    @transform.checkpoint
    class Middle(Base):
        def __call__(self, x: Any) -> Any:
            return super().__call__(x) + 1

    class Top(Middle):
        def __call__(self, x: Any) -> Any:
            return super().__call__(x) ** 2

    top = Top()
    assert isinstance(top, Base) and isinstance(top, Middle)
    assert transform.grad(top)(3.0) == 2 * (2 * 3.0 + 1) * 2
    assert top.n.value == 1


@transform.checkpoint(methods="step")
class Decorated:
    def __init__(self, size: int) -> None:
        self.w = Param(jnp.ones(size), name="w")

    def step(self, x: Any) -> None:
        self.w.value = self.w.value + x


def test_an_instance_of_a_checkpointed_class_can_be_copied_and_pickled_where_its_name_is_found() -> None:
    layer = Decorated(2)
    layer.step(1.0)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert again.w.value.tolist() == [2.0, 2.0]
        again.step(1.0)
        assert layer.w.value.tolist() == [2.0, 2.0]
    with pytest.raises(pickle.PicklingError, match="Layer"):
        pickle.dumps(transform.checkpoint(Layer)(2))


def test_flags_for_each_argument_count_neither_the_instance_nor_static_arguments() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = State(jnp.float32(2))

        @transform.checkpoint(prevent_cse=(False, True), static_argnums=1)
        def step(self, x: Any, n: int, y: Any) -> Any:
            return jnp.sin(self.w.value * x * y) ** n

    too_few: Any = (1.0, 2)
    model = Model()
    for step in (model.step, functools.partial(Model.step, model)):
        eqns = jax.make_jaxpr(step, static_argnums=1)(1.0, 2, 1.0).jaxpr.eqns
        (eqn,) = [eqn for eqn in eqns if "prevent_cse" in eqn.params]
        assert sorted(eqn.params["prevent_cse"]) in ([False, False, True], [False, True, True])
        with pytest.raises(ValueError, match="`prevent_cse` has 2 entries, but the call has 1 arguments by position"):
            step(*too_few)
    with pytest.raises(ValueError, match="`prevent_cse` has 1 entries"):
        transform.checkpoint(lambda x, y: x, prevent_cse=(True,))(1.0, 2.0)


def _flags(wrap: Any, flags: Any, *args: Any, **kwargs: Any) -> Any:
    """The flags in the equation of a checkpoint."""

    def f(*args: Any, **kwargs: Any) -> Any:
        return jax.tree.map(jnp.sin, (args, kwargs))

    call = functools.partial(wrap(f, prevent_cse=flags), **{name: x for name, x in kwargs.items() if name == "n"})
    given = {name: x for name, x in kwargs.items() if name != "n"}
    (eqn,) = jax.make_jaxpr(lambda args, kwargs: call(*args, **kwargs))(args, given).jaxpr.eqns
    return eqn.params["prevent_cse"]


@pytest.mark.parametrize(
    ("flags", "args", "kwargs"),
    [
        ((True, False), (1.0,), {"y": 1.0}),
        ((True, False), (1.0, 1.0), {"y": 1.0}),
        (((False, True), False), (1.0, 1.0), {"y": 1.0}),
        ((False, {"y": True, "z": False}), (1.0,), {"y": 1.0, "z": 1.0}),
        ((False, True), (), {"y": 1.0}),
        (({"a": False, "b": True}, True), ({"a": 1.0, "b": 1.0}, 1.0), {}),
    ],
)
def test_flags_of_a_call_with_keyword_arguments_are_a_pair(flags: Any, args: Any, kwargs: Any) -> None:
    assert _flags(transform.checkpoint, flags, *args, **kwargs) == _flags(jax.checkpoint, flags, *args, **kwargs)


def test_static_keyword_arguments_count_as_no_keyword_arguments_for_the_flags() -> None:
    wrap = functools.partial(transform.checkpoint, static_argnames="n")
    assert _flags(wrap, (True, False), 1.0, 1.0, n=2) == (True, False)
    assert _flags(wrap, (True, {"y": False}), 1.0, 1.0, n=2, y=1.0) == (True, True, False)
    with pytest.raises(ValueError, match="`prevent_cse` has 3 entries, but the call has arguments by keyword"):
        _flags(wrap, (True, True, False), 1.0, 1.0, n=2, y=1.0)


@pytest.mark.parametrize("flags", [({"a": False, "b": True},), [{"a": False, "b": True}]])
def test_flags_in_a_container_let_the_body_run_once(flags: Any) -> None:
    runs = []

    @transform.checkpoint(prevent_cse=flags)
    def f(x: Any) -> Any:
        runs.append(x)
        return x["a"] * x["b"]

    assert [float(f({"a": 2.0, "b": 3.0})) for _ in range(3)] == [6.0] * 3
    assert float(transform.grad(f)({"a": 2.0, "b": 3.0})["a"]) == 3.0
    assert len(runs) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda name: jax.checkpoint_policies.save_only_these_names(name),
        lambda name: jax.checkpoint_policies.save_any_names_but_these(name),
        lambda name: jax.checkpoint_policies.save_from_both_policies(
            jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.save_only_these_names(name)
        ),
        lambda name: jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[name],
            names_which_can_be_offloaded=[],
            offload_src="device",
            offload_dst="pinned_host",
        ),
    ],
)
def test_the_body_runs_once_for_equal_policies_of_jax_that_are_made_for_each_call(make: Any) -> None:
    runs = []

    def f(x: Any) -> Any:
        runs.append(x)
        return jnp.sin(checkpoint_name(jnp.sin(x), "a") + checkpoint_name(jnp.cos(x), "b"))

    for name in ("a", "b"):
        for _ in range(3):
            jax.grad(transform.checkpoint(f, policy=make(name)))(1.0)
    assert len(runs) == 2


def test_the_structure_of_a_state_may_change_within_the_body() -> None:
    s = State({"a": jnp.float32(1)}, name="s")

    @transform.checkpoint
    def grow(x: Any) -> Any:
        s.value = {**s.value, f"k{len(s.value)}": x}
        return sum(s.value.values()) * x

    assert transform.grad(grow)(2.0) == 5.0
    assert s.value == {"a": 1.0, "k1": 2.0}
    assert transform.jit(grow)(3.0) == 18.0
    assert sorted(s.value) == ["a", "k1", "k2"]
    with pytest.raises(st.StateStructureError, match="State 's'"):
        transform.scan(lambda c, _: (grow(c), None), 1.0, None, length=2)


def test_a_state_that_was_made_before_an_error_keeps_its_value_as_without_a_transform() -> None:
    for around in (transform.grad, lambda f: transform.vmap(f, in_axes=None, axis_size=2)):
        model = types.SimpleNamespace()

        def f(x: Any, model: Any = model) -> Any:
            if not hasattr(model, "made"):
                model.made = State(1.0)
            raise KeyError(x)

        with pytest.raises(KeyError):
            around(f)(1.0)
        assert model.made.value == 1.0


class Scaled:
    """A method with rules for its recomputation: its cotangent is ten times the true one."""

    def __init__(self) -> None:
        self.w, self.n = Param(jnp.float32(3), name="w"), State(jnp.int32(0), name="n")

    def product(self, x: Any) -> Any:
        self.n.value = self.n.value + 1
        return self.w.value * x

    @transform.custom_vjp
    def __call__(self, x: Any) -> Any:
        return self.product(x)


RECOMPUTED: dict[str, Any] = {
    "grad": transform.grad,
    "grad of checkpoint": lambda f: transform.grad(transform.checkpoint(f)),
    "jit of grad of checkpoint": lambda f: transform.jit(transform.grad(transform.checkpoint(f))),
    "grad of scan of checkpoint": lambda f: transform.grad(
        lambda x: transform.scan(lambda c, _: (transform.checkpoint(f)(c), None), x, length=1)[0]
    ),
    "grad of checkpoint of cond": lambda f: transform.grad(
        transform.checkpoint(lambda x: transform.cond(x > 0, f, lambda x: x, x))
    ),
}


@pytest.mark.skipif(not hasattr(jax.custom_vjp, "defremat"), reason="this JAX has no `defremat`")
@pytest.mark.parametrize("way", RECOMPUTED)
def test_rules_for_recomputation_read_and_write_states(way: str) -> None:
    def fwd(self: Scaled, x: Any) -> Any:
        return self.product(x), 2 * x

    def rem(residuals: Any, self: Scaled, x: Any) -> Any:
        return self.product(x), residuals + self.w.value - 2 * x

    before = {name: getattr(jax.config, name) for name in ("jax_custom_vjp3", "jax_remat3")}
    Scaled.__call__.defremat(fwd, rem, lambda residuals, ct: (10 * residuals * ct,))
    model = Scaled()
    try:
        for name in before:
            jax.config.update(name, True)
        slope = RECOMPUTED[way](model)
        assert (slope(jnp.float32(2)), model.n.value) == (30.0, 1)
        model.w.value = jnp.float32(5)
        assert (slope(jnp.float32(2)), model.n.value) == (50.0, 2)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@pytest.mark.skipif(hasattr(jax.custom_vjp, "defremat"), reason="this JAX has `defremat`")
def test_rules_for_recomputation_are_refused_where_jax_has_none() -> None:
    double = transform.custom_vjp(lambda x: 2 * x)
    with pytest.raises(AttributeError, match=r"defremat: this JAX has no rules for recomputation; 0\.12 has"):
        double.defremat(lambda x: (2 * x, None), lambda residuals, x: (2 * x, None), lambda residuals, ct: (ct,))


@pytest.mark.parametrize("around", [lambda f: f, lambda f: transform.jit(f)], ids=["eager", "jit"])
def test_fifty_checkpoints_nest_under_the_recursion_limit_of_python(around: Any) -> None:
    w = Param(jnp.float32(2))

    def nested(lib: Any, innermost: Callable[[Any], Any]) -> Callable[[Any], Any]:
        f = innermost
        for _ in range(50):
            f = lib.checkpoint(lambda x, f=f: f(jnp.sin(x)))
        return f

    slope = around(transform.grad(nested(transform, lambda x: x * w.value)))
    with concurrent.futures.ThreadPoolExecutor() as empty_stack:
        found = empty_stack.submit(slope, jnp.float32(1)).result()
    assert jnp.allclose(found, jax.grad(nested(jax, lambda x: x * 2))(jnp.float32(1)))


@pytest.mark.parametrize(
    "wrap", [transform.checkpoint, transform.jit, lambda f: transform.jit(transform.checkpoint(f))]
)
def test_a_default_of_an_omitted_argument_is_not_traced(wrap: Any) -> None:
    w = Param(jnp.float32(2))

    def f(x: Any, flag: bool = True, *, n: int = 3, name: str = "sin") -> Any:
        for _ in range(n if flag else 1):  # needs values that are not traced
            x = getattr(jnp, name)(w.value * x)
        return x

    x = jnp.float32(0.5)
    twin = lambda x: jnp.sin(2 * jnp.sin(2 * jnp.sin(2 * x)))
    assert jnp.allclose(wrap(f)(x), twin(x))
    assert jnp.allclose(transform.grad(wrap(f))(x), jax.grad(twin)(x))
    with pytest.raises((TypeError, jax.errors.TracerBoolConversionError)):
        wrap(f)(x, True)
