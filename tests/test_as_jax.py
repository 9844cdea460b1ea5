"""A function without states gets from these transforms what it gets from JAX's: values, and refusals.

Rows are products: each transform with each of some calls, right and wrong. Both libraries make the call; values have to
be equal with their types, exceptions of the same class or of one derived from it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import transform

from .tables import JAX

X, Y, XS = jnp.float32(2.0), jnp.float32(3.0), jnp.arange(3.0)


class Like:
    shape, dtype = (3,), np.dtype("float32")


class Opaque:
    """Nothing that JAX knows."""


def outcome(call: Callable[[], Any]) -> Any:
    """What came of a call: leaves with their types, or the exception."""
    try:
        out = call()
    except Exception as error:
        return error
    leaves, treedef = jax.tree.flatten(out)
    show = lambda x: (np.asarray(x).tolist(), str(jax.typeof(x))) if isinstance(x, jax.Array | np.ndarray) else repr(x)
    return str(treedef), [show(leaf) for leaf in leaves]


def assert_as_jax(call: Callable[[Any], Any], row: str) -> None:
    ours, jaxs = outcome(lambda: call(transform)), outcome(lambda: call(JAX))
    if isinstance(jaxs, Exception):
        assert isinstance(ours, Exception), f"{row}: JAX raises {jaxs!r}, here {ours}"
        assert isinstance(ours, type(jaxs)), f"{row}: JAX raises {jaxs!r}, here {ours!r}"
    else:
        assert not isinstance(ours, Exception), f"{row}: JAX gives {jaxs}, here {ours!r}"
        assert ours == jaxs, row


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "one": lambda x: jnp.sin(x).sum(),
    "two": lambda x, y: (x * y).sum(),
    "default": lambda x, y=2.0: (x * y).sum(),
    "tree": lambda x: x["a"] * x["b"][0],
    "pair": lambda x: (x.sum(), x),
    "decides": lambda x: x if x > 0 else -x,
    "integer": lambda x: jnp.int32(3) * x.astype(int).sum(),
    "text": lambda x: "text",
    "raises": lambda x: 1 / 0,
    "no arguments": lambda: jnp.float32(1.0),
    "by keyword": lambda x, *, k: (x * k).sum(),
}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "nothing": (),
    "float": (2.0,),
    "negative": (-2.0,),
    "integer": (2,),
    "vector": (XS,),
    "complex": (1j,),
    "two": (X, Y),
    "tree": ({"a": X, "b": [Y]},),
    "text": ("text",),
    "none": (None,),
    "other lengths": (XS, jnp.ones(4)),
}
#: `library -> function -> function`, called with the arguments of a row.
TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "jit": lambda t: t.jit,
    "checkpoint": lambda t: t.checkpoint,
    "grad": lambda t: t.grad,
    "value_and_grad": lambda t: t.value_and_grad,
    "grad with aux": lambda t: t.grad(has_aux=True) if t is transform else functools.partial(jax.grad, has_aux=True),
    "jacfwd": lambda t: t.jacfwd,
    "jacrev": lambda t: t.jacrev,
    "hessian": lambda t: t.hessian,
    "vmap": lambda t: t.vmap,
    "named_call": lambda t: functools.partial(t.named_call, name="f"),
    "checkify": lambda t: lambda f: lambda *args: t.checkify(f)(*args)[1],
    "eval_shape": lambda t: lambda f: lambda *args: t.eval_shape(f, *args),
    "vjp": lambda t: lambda f: lambda *args: t.vjp(f, *args)[0],
    "linearize": lambda t: lambda f: lambda *args: t.linearize(f, *args)[0],
    "jvp": lambda t: lambda f: lambda *args: t.jvp(f, args, args),
    "map": lambda t: lambda f: lambda *args: t.map(f, *args),
    "custom_vjp": lambda t: lambda f: with_vjp(t, f),
    "custom_jvp": lambda t: lambda f: with_jvp(t, f),
    "gradient of custom_vjp": lambda t: lambda f: t.grad(with_vjp(t, f)),
    "gradient of custom_jvp": lambda t: lambda f: t.grad(with_jvp(t, f)),
    "jit of grad": lambda t: lambda f: t.jit(t.grad(f)),
    "vmap of grad": lambda t: lambda f: t.vmap(t.grad(f)),
    "grad of checkpoint": lambda t: lambda f: t.grad(t.checkpoint(f)),
}


def with_vjp(t: Any, f: Any) -> Any:
    f_vjp = t.custom_vjp(f)
    f_vjp.defvjp(lambda *args: (f(*args), None), lambda _, ct: (ct,))
    return f_vjp


def with_jvp(t: Any, f: Any) -> Any:
    f_jvp = t.custom_jvp(f)
    f_jvp.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    return f_jvp


SLOW = [*[name for name in TRANSFORMS if " of " in name], "hessian", "jacfwd", "jacrev", "linearize", "jvp"]
FEW = ("two", "tree", "decides", "integer")


@pytest.mark.parametrize("name", TRANSFORMS)
def test_each_function_with_each_argument(name: str) -> None:
    for f_name, a_name in itertools.product(FEW if name in SLOW else FUNCTIONS, ARGUMENTS):
        call = lambda t: TRANSFORMS[name](t)(FUNCTIONS[f_name])(*ARGUMENTS[a_name])  # noqa: B023 - called at once
        assert_as_jax(call, f"{name} of {f_name!r} with {a_name!r}")


def f3(x: Any, y: Any = 2.0, *, k: Any = 1.0) -> Any:
    return (x * y * k).sum()


def step(c: Any, x: Any) -> Any:
    return c + x, c * x


def bounded(t: Any, lower: Any, upper: Any, traced: int | None) -> Any:
    """A loop, one of whose bounds is traced."""
    loop = lambda lower, upper: t.fori_loop(lower, upper, lambda i, c: c + i, X)
    if traced is None:
        return loop(lower, upper)
    return t.jit(lambda b: loop(*((b, upper), (lower, b))[traced]))((lower, upper)[traced])


LOWER = (0, np.int8(0), np.uint8(3), np.float32(3), jnp.int16(3), 3.0, True, "a")
UPPER = (3, np.int8(3), 3.0, jnp.int16(3), None)
DECORATORS = ("jit", "grad", "value_and_grad", "jacfwd", "jacrev", "hessian", "vmap")
WITH_OPTIONS: dict[str, tuple[Callable[[Any, Any], Any], tuple[Any, ...]]] = {
    "in_axes": (
        lambda t, v: t.vmap(f3, in_axes=v)(XS, XS),
        (0, 1, -1, None, True, "0", 1.0, {"a": 0}, *[(0,) * n for n in (1, 2, 3)], (0, 1), (0, None), [0, None]),
    ),
    "out_axes": (
        lambda t, v: t.vmap(lambda x: (x, XS * x), out_axes=v)(XS),
        (0, None, 1, -1, (0, 1), (0, -1), (0, None), (None, 0), (0,), (0, 1, 2), "0", [0, 1], {"a": 0}),
    ),
    "axis_size": (lambda t, v: t.vmap(f3, axis_size=v)(XS), (None, 3, 4, 0)),
    "axis_size alone": (lambda t, v: t.vmap(f3, in_axes=None, axis_size=v)(X), (None, 3, 0)),
    "axis_name": (lambda t, v: t.vmap(lambda x: jax.lax.psum(x, "i"), axis_name=v)(XS), ("i", "j", None)),
    "vmap of keywords": (lambda t, v: t.vmap(f3)(XS, k=v), (1.0, XS, jnp.ones(4), "text", None)),
    "vmap of None": (
        lambda t, v: t.vmap(v[0], in_axes=v[1], **v[3])(*v[2]),
        (
            *[(lambda x, y: x, axes, (XS, None), {}) for axes in (0, (0, None))],
            (lambda pair: pair[1], 0, ((None, XS),), {}),
            (lambda y: jnp.ones(()), 0, (None,), {"axis_size": 3}),
        ),
    ),
    "vmap of nothing": (lambda t, v: t.vmap(f3)(*v), ((), (X,), (XS, X))),
    "argnums of grad": (
        lambda t, v: t.grad(f3, argnums=v)(X, Y),
        (0, 1, -1, -2, (0,), (0, 1), [1, 0], (), 2, -3, (0, 2), (0, -3), "0", 1.0, np.int64(1), (0, 0), (0, -2)),
    ),
    "argnums of jacrev": (lambda t, v: t.jacrev(f3, argnums=v)(X, Y), (0, (0, 1), -1, 2, -3, "0")),
    "argnums of jacfwd": (lambda t, v: t.jacfwd(f3, argnums=v)(X, Y), (0, (0, 1), -1, 2, -3, "0")),
    "grad with a default": (lambda t, v: t.grad(f3, argnums=v)(X), (0, 1, (0, 1))),
    "grad with keywords": (
        lambda t, v: t.grad(f3)(*v[0], **v[1]),
        (((X,), {"y": Y}), ((X,), {"k": Y}), ((), {"x": X})),
    ),
    "reduce_axes": (lambda t, v: t.grad(f3, reduce_axes=v)(X), ((), ("i",))),
    "allow_int": (lambda t, v: t.grad(f3, allow_int=v)(2), (False, True)),
    "holomorphic": (
        lambda t, v: t.grad(lambda x: x * x, holomorphic=v[0])(v[1]),
        ((True, 1j), (False, 1j), (True, 1.0)),
    ),
    "has_aux": (lambda t, v: t.value_and_grad(lambda x: v(x), has_aux=True)(X), (lambda x: (x, {"a": x}), lambda x: x)),
    "vjp": (lambda t, v: t.vjp(f3, X, Y)[1](v), (X, 1.0, 1, XS, (X,), None, "text", jnp.float16(1))),
    "jvp": (
        lambda t, v: t.jvp(f3, *v),
        (((X, Y), (X, Y)), ((X,), (Y,)), ([X], [Y]), ((X, Y), (X,)), ((X,), (1,)), (X, X), ((X,), (XS,)), ((X,), [Y])),
    ),
    "linearize": (lambda t, v: t.linearize(f3, X, Y)[1](*v), ((X, Y), (X,), (1.0, 1.0), (XS, X), ())),
    "eval_shape": (
        lambda t, v: t.eval_shape(f3, v),
        (X, Like(), jax.ShapeDtypeStruct((2,), jnp.int32), XS, Opaque(), 1),
    ),
    "scan": (
        lambda t, v: t.scan(step, X, *v[0], **v[1]),
        (
            *[((xs,), {}) for xs in (XS, None, X, (XS, jnp.ones(4)), "text", [], jnp.ones(0))],
            *[((xs, n), {}) for xs, n in ((XS, 3), (XS, 2), (None, 3))],
            *[((XS,), options) for options in ({"reverse": True, "unroll": 2}, {"unroll": 0})],
            ((), {"length": 0}),
        ),
    ),
    "scan with a body": (
        lambda t, v: t.scan(v, X, XS),
        (
            lambda c, x: c,
            lambda c, x: (c, x, c),
            lambda c, x: (c.astype(int), x),
            lambda c, x: ((c, c), x),
            lambda c, x: (XS, x),
            lambda c, x: (c, None),
            lambda c, x: (c, "text"),
            lambda c: (c, c),
            3,
        ),
    ),
    "while_loop": (
        lambda t, v: t.while_loop(*v),
        (
            (lambda c: c < 5, lambda c: c + 1, 0),
            (lambda c: c < 5, lambda c: c + 1.0, 0),
            (lambda c: c < 5, lambda c: (c, c), 0),
            (lambda c: c < 5, lambda c: c + XS, X),
            (lambda c: (c < 5,), lambda c: c + 1, 0),
            (lambda c: c, lambda c: c + 1, 0),
            (lambda c: c < XS, lambda c: c + 1, X),
            (lambda c: c < 5, lambda c: c + 1, "text"),
            (3, lambda c: c, 0),
            (lambda c: c < 5, 3, 0),
        ),
    ),
    "cond": (
        lambda t, v: t.cond(*v),
        (
            (True, lambda x: x, lambda x: -x, X),
            (X > 1, lambda x: x, lambda x: 1.0, X),
            (X, lambda x: x, lambda x: -x, X),
            (3, lambda x: x, lambda x: -x, X),
            (XS > 1, lambda x: x, lambda x: -x, X),
            ("text", lambda x: x, lambda x: -x, X),
            (None, lambda x: x, lambda x: -x, X),
            (True, lambda x: x, lambda x: (x, x), X),
            (True, lambda x: x, lambda x: XS, X),
            (True, lambda: X, lambda: Y),
            (True, lambda x: x, lambda x: x),
            (True, lambda x: x, lambda x: x, "text"),
            (True, lambda x: "text", lambda x: "text", X),
            (True, 3, lambda x: x, X),
        ),
    ),
    "switch": (
        lambda t, v: t.switch(*v),
        (
            (0, [lambda x: x, lambda x: -x], X),
            (5, [lambda x: x, lambda x: -x], X),
            (-1, [lambda x: x, lambda x: -x], X),
            (jnp.int32(1), (lambda x: x, lambda x: -x), X),
            (0, [lambda x: x], X),
            (0, [], X),
            (0.5, [lambda x: x, lambda x: -x], X),
            (jnp.arange(2), [lambda x: x, lambda x: -x], X),
            ("text", [lambda x: x, lambda x: -x], X),
            (0, [lambda x: x, 3], X),
            (0, [lambda x: x, lambda x: XS], X),
            (True, [lambda x: x, lambda x: -x], X),
        ),
    ),
    "fori_loop": (
        lambda t, v: t.fori_loop(*v),
        (
            (0, 3, lambda i, c: c + i, X),
            (3, 0, lambda i, c: c + i, X),
            (0, jnp.int8(3), lambda i, c: c + i, X),
            (0, 3.5, lambda i, c: c + i, X),
            (0, 3, lambda i, c: (c, c), X),
            (0, 3, lambda c: c, X),
            (0, 3, 3, X),
            (0, 3, lambda i, c: c, "text"),
        ),
    ),
    "bounds of fori_loop": (lambda t, v: bounded(t, *v), tuple(itertools.product(LOWER, UPPER, (None, 0, 1)))),
    "map in batches": (
        lambda t, v: t.map(
            lambda x: x["a"] + x["b"].sum(), {"a": XS[: v[0]], "b": jnp.ones((v[0], 2))}, batch_size=v[1]
        ),
        tuple(itertools.product((0, 1, 3), (0, 2, 5, None))),
    ),
    "associative_scan": (
        lambda t, v: t.associative_scan(lambda a, b: a + b, v[0], **v[1]),
        ((XS, {}), (XS, {"reverse": True}), (X, {}), (jnp.ones((2, 3)), {"axis": 1}), (XS, {"axis": 1}), ([], {})),
    ),
    "checkpoint": (
        lambda t, v: t.checkpoint(f3, **v[0])(*v[1]),
        (
            ({"static_argnums": 1}, (X, 2.0)),
            ({"static_argnums": (1,)}, (X, 2.0)),
            ({"static_argnums": -1}, (X, 2.0)),
            ({"static_argnums": (1,)}, (X, [2.0])),
            ({"static_argnums": "1"}, (X, 2.0)),
            ({"prevent_cse": False}, (X,)),
            *[({"prevent_cse": flags}, (X, X)) for flags in ((True, False), [False, True], (), None, 1, "s", {"a": 1})],
            *[({"prevent_cse": flags}, (X, X)) for flags in ((True,), (True,) * 3, ((True,), False))],
            *[({"prevent_cse": flags, "static_argnums": 1}, (X, 2)) for flags in ((True,), (True, True))],
            ({"nothing": 3}, (X,)),
        ),
    ),
    "no function": (lambda t, v: getattr(t, v)(3), DECORATORS),
    "names of options": (
        lambda t, v: getattr(t, v)(f3, nothing=1),
        (*DECORATORS, "checkpoint", "custom_vjp", "custom_jvp"),
    ),
    "no rule": (lambda t, v: getattr(t, v)(f3)(X), ("custom_vjp", "custom_jvp")),
    "no rule of a partial function": (
        lambda t, v: getattr(t, v)(functools.partial(f3, X))(X),
        ("custom_vjp", "custom_jvp"),
    ),
    "a list for a pair": (
        lambda t, v: v(t),
        (
            *[
                lambda t, name=name: getattr(t, name)(lambda x: [x.sum(), 1], has_aux=True)(XS)
                for name in ("grad", "value_and_grad", "jacfwd", "jacrev", "hessian")
            ],
            lambda t: t.jvp(lambda x: [x, 1], (X,), (X,), has_aux=True),
            lambda t: t.linearize(lambda x: [x, 1], X, has_aux=True)[0],
            lambda t: tuple(t.scan(lambda c, x: [c + x, c], X, XS)),  # JAX gives a list then
            lambda t: t.scan(lambda c, x: [c, x, x], X, XS),
        ),
    ),
    "not hashable": (
        lambda t, v: getattr(t, v)(f3, static_argnums=1)(X, [2.0]),
        ("jit", "make_jaxpr"),
    ),
}


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_each_option(name: str) -> None:
    call, values = WITH_OPTIONS[name]
    for i, value in enumerate(values):
        assert_as_jax(lambda t: call(t, value), f"{name}, row {i}, {value!r}")  # noqa: B023 - called at once
