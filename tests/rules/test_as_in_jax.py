"""Which arguments a rule may take, and what is said of a wrong one: as by JAX."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import transform

from .functions import X

NONDIFF = [(1,), (-1,), (5,), (0, 1), (-2,), (1, -1), ()]


@pytest.mark.parametrize("argnums", NONDIFF)
@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_arguments_that_are_not_differentiated_are_those_that_jax_takes(kind: str, argnums: tuple[int, ...]) -> None:
    def outcome(library: Any, grad: Any, jit: Any) -> list[Any]:
        f = getattr(library, kind)(lambda x, y: x * y, nondiff_argnums=argnums)
        if kind == "custom_vjp":
            f.defvjp(lambda x, y: (x * y, (x, y)), lambda *args: (args[-1] * 10,) * (2 - len(argnums)))
        else:
            f.defjvp(lambda *args: (args[-2][0] * 3.0, args[-1][0] * 10.0))
        found: list[Any] = []
        for call in (f, grad(f), jit(f), jit(grad(lambda x: f(x, 3.0))), grad(jit(lambda x: f(x, 3.0)))):
            # Of two mistakes at once, JAX speaks of the one or the other according to the release.
            for args in ((X, 3.0), (X,)) if min(argnums, default=0) >= 0 else ((X, 3.0),):
                try:
                    found.append(float(call(*args)))
                except Exception as error:
                    found.append(next(c for c in type(error).__mro__ if c.__module__ in ("builtins", "jax.errors")))
        return found

    assert outcome(transform, transform.grad, transform.jit) == outcome(jax, jax.grad, jax.jit)


REVERSE_RULES_THAT_ARE_WRONG: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "too few cotangents": (lambda x, y: (x * y, None), lambda _, ct: (ct,)),
    "too many cotangents": (lambda x, y: (x * y, None), lambda _, ct: (ct, ct, ct)),
    "no tuple": (lambda x, y: (x * y, None), lambda _, ct: ct),
    "a cotangent of another shape": (lambda x, y: (x * y, None), lambda _, ct: (jnp.ones(3), ct)),
    "a cotangent of another structure": (lambda x, y: (x * y, None), lambda _, ct: ({"a": ct}, ct)),
    "no residuals": (lambda x, y: x * y, lambda _, ct: (ct, ct)),
    "three values": (lambda x, y: (x, y, None), lambda _, ct: (ct, ct)),
    "an argument less": (lambda x: (x, None), lambda _, ct: (ct, ct)),
    "no residuals taken": (lambda x, y: (x * y, None), lambda ct: (ct, ct)),
}
FORWARD_RULES_THAT_ARE_WRONG: dict[str, Callable[..., Any]] = {
    "no pair": lambda p, t: p[0],
    "three": lambda p, t: (p[0], t[0], t[1]),
    "structure": lambda p, t: (p[0], {"a": t[0]}),
    "shape": lambda p, t: (p[0], jnp.ones(3)),
    "dtype": lambda p, t: (p[0], jnp.int32(1)),
    "arguments": lambda p: p,
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("rule", REVERSE_RULES_THAT_ARE_WRONG | FORWARD_RULES_THAT_ARE_WRONG)
def test_a_wrong_rule_is_explained_as_by_jax(rule: str, compiled: bool) -> None:
    def message(library: Any) -> tuple[type, str]:
        if rule in REVERSE_RULES_THAT_ARE_WRONG:
            f, n_words = library.custom_vjp(lambda x, y: x * y), 8
            f.defvjp(*REVERSE_RULES_THAT_ARE_WRONG[rule])
        else:
            f, n_words = library.custom_jvp(lambda x, y: x * y), 5
            f.defjvp(FORWARD_RULES_THAT_ARE_WRONG[rule])
        with pytest.raises((TypeError, ValueError)) as info:
            (library.jit(library.grad(f)) if compiled else library.grad(f))(X, X)
        return info.type, " ".join(re.sub(r"0x\w+", "", str(info.value)).split()[:n_words])

    assert message(transform) == message(jax)
