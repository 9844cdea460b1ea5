"""On stateless functions the list is JAX's own."""

from __future__ import annotations

import contextlib
import io
import math
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals

from statetransform import inspect

W = jnp.linspace(0.1, 1.0, 16).reshape(4, 4)
X = jnp.linspace(-1.0, 1.0, 4)
XS = jnp.linspace(0.0, 1.0, 20).reshape(5, 4)
PARAMS = {"b": X, "w": W}
named_only = jax.checkpoint_policies.save_only_these_names
jitted = jax.jit(lambda w, x: jnp.tanh(w @ x))


def layers(w: Any, x: Any) -> Any:
    for _ in range(3):
        x = jnp.sin(w @ x)
    return x


def named(w: Any, x: Any) -> Any:
    y = checkpoint_name(jnp.sin(w @ x), "a")
    return checkpoint_name(jnp.tanh(w @ y), "b").sum()


def body(c: Any, x: Any) -> tuple[Any, Any]:
    c = checkpoint_name(jnp.sin(W @ c + x), "inner")
    return c, c.sum()


def custom_rule() -> Callable[[Any], Any]:
    @jax.custom_vjp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), (jnp.cos(x), x)), lambda res, g: (g * res[0],))
    return f


def custom_jvp_rule() -> Callable[[Any], Any]:
    @jax.custom_jvp
    def f(x: Any) -> Any:
        return jnp.log1p(jnp.exp(x))

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * jax.nn.sigmoid(primals[0])))
    return f


SOFTPLUS, RULE = custom_jvp_rule(), custom_rule()

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "sine": (jnp.sin, (X,), {}),
    "scalar arguments": (lambda x, y: x * y, (2.0, 3), {}),
    "layers over a constant": (lambda x: layers(W, x), (X,), {}),
    "pytree arguments": (lambda p, x: jnp.tanh(p["w"] @ x + p["b"]), (PARAMS, X), {}),
    "keywords": (lambda x, *, scale: jnp.sin(x * scale), (X,), {"scale": X}),
    "variadic": (lambda *xs, **named: jnp.sin(xs[0] * xs[1]) * named["z"], (X, X), {"z": X}),
    "several outputs": (lambda x: {"a": jnp.sin(x), "b": (x, x.sum())}, (X,), {}),
    "loss with aux": (lambda w, x: (named(w, x), {"x": jnp.exp(x)}), (W, X), {}),
    "integers": (lambda x, i: x[i] * jnp.sin(x[:2]), (X, jnp.array([0, 2])), {}),
    "random key": (lambda k, x: x * jax.random.normal(k, x.shape) ** 2 * x, (jax.random.key(0), X), {}),
    "half precision": (lambda x: jnp.exp(x.astype(jnp.bfloat16)) * 2, (X,), {}),
    "jit inside": (lambda w, x: jitted(w, jitted(w, x)), (W, X), {}),
    "vmap": (jax.vmap(layers, (None, 0)), (W, XS), {}),
    "scan": (lambda x: lax.scan(body, x, XS), (X,), {}),
    "cond": (lambda x: lax.cond(x[0] > 0, jnp.sin, lambda x: jnp.exp(x) * x, x), (X,), {}),
    "custom vjp": (lambda x: RULE(x) * x, (X,), {}),
    "custom jvp": (lambda x: SOFTPLUS(x).sum(), (X,), {}),
    "named": (named, (W, X), {}),
    "checkpoint a": (jax.checkpoint(named, policy=named_only("a")), (W, X), {}),
    "checkpoint each layer": (lambda w, x: jitted(w, jax.checkpoint(jitted)(w, jnp.sin(x))), (W, X), {}),
    "checkpoint in scan": (lambda x: lax.scan(jax.checkpoint(body), x, XS), (X,), {}),
    "named in scan": (
        lambda x: lax.scan(jax.checkpoint(body, policy=named_only("inner")), x, XS),
        (X,),
        {},
    ),
    "gradient inside": (lambda x: jax.grad(lambda y: jnp.sin(y).sum())(x) * x, (X,), {}),
    "stop gradient": (lambda x: lax.stop_gradient(jnp.sin(x)) * x, (X,), {}),
    "abstract arguments": (layers, (jax.ShapeDtypeStruct((4, 4), jnp.float32), X), {}),
}
SHORT = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i32": "int32", "u32": "uint32", "u8": "uint8",
         "bool": "bool", "c64": "complex64", "i8": "int8"}  # fmt: skip
# Behind these stands the inside of a loop, a branch or a compiled function, of which JAX does not tell.
DEEPER = ("output of jitted function", "output of scan", "output of cond", "output of while")


def printed(fun, *args) -> list[str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        fun(*args[:-1], **args[-1])
    return out.getvalue().splitlines()


def types(lines: list[str]) -> list[tuple[str, tuple[int, ...]]]:
    found = []
    for line in lines:
        match = re.match(r"~?([a-z0-9<>_]+)\[([0-9,]*)\]", line)
        assert match, line
        shape = tuple(int(n) for n in match[2].split(",") if n)
        found.append((SHORT.get(match[1], match[1]), shape))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_list_is_that_of_jax_and_so_are_the_lines_where_jax_tells_as_much(name):
    fun, args, kwargs = PROGRAMS[name]
    theirs = printed(print_saved_residuals, fun, *args, kwargs)
    ours = printed(inspect.print_saved_residuals, fun, *args, kwargs)
    records = inspect.residuals(fun, *args, **kwargs)
    assert types(ours) == types(theirs) == [(r.dtype, r.shape) for r in records]
    for line, other in zip(ours, theirs, strict=True):
        if not any(text in other for text in DEEPER) and not other.rstrip().endswith("from"):
            assert line == other
    for record in records:
        assert (record.bytes > 0) == (math.prod(record.shape) > 0)
        if record.kind in ("computed", "named") and name != "sine":  # jnp.sin has no line of the user's
            assert record.primitive is not None
            assert pathlib.Path(record.file).parent == pathlib.Path(__file__).parent
