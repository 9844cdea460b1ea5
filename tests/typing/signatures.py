"""Checked by pyright, not run: decorators keep the signature of what they decorate."""

from __future__ import annotations

from typing import Any, assert_type

from statetransform import transform
from statetransform._traces.functional import Functionalized
from statetransform.transform._custom import CustomJvp, CustomVjp
from statetransform.transform._jit import Compiled


@transform.checkpoint
def scale(x: int, y: str = "a") -> float:
    return x * len(y)


@transform.jit
def compiled(x: int) -> float:
    return float(x)


class Sim:
    @transform.checkpoint(static_argnums=(1,))
    def step(self, x: float, n: int) -> str:
        return str(x * n)

    @transform.jit(static_argnums=1)
    def fast(self, x: float, n: int) -> str:
        return str(x * n)


@transform.checkpoint
class Layer:
    def __call__(self, x: float) -> float:
        return x


assert_type(scale(1, y="b"), float)
assert_type(compiled(1), float)
assert_type(Sim().step(1.0, 2), str)
assert_type(Sim().fast(1.0, 2), str)
assert_type(Layer(), Layer)
compiled.lower(1).compile()
scale("no")  # pyright: ignore[reportArgumentType]


@transform.grad
def slope(x: float, y: str = "a") -> float:
    return x * len(y)


@transform.vmap(in_axes=0)
def lanes(x: float) -> float:
    return x


slope(1.0, y="b")


def untyped(model: Any) -> None:
    """A function whose type is not known is no decorator's argument."""
    assert_type(transform.jit(model.step), Compiled[..., Any])
    assert_type(transform.functionalize(model.step), Functionalized)
    assert_type(transform.custom_vjp(model.step), CustomVjp)
    assert_type(transform.custom_jvp(model.step), CustomJvp)
    transform.checkpoint(model.step)(1.0)
    transform.vmap(model.step)(1.0)


slope("no")  # pyright: ignore[reportArgumentType]
lanes([1.0])  # pyright: ignore[reportArgumentType]
transform.hessian(scale)(1, y="b")
transform.jacrev(scale)("no")  # pyright: ignore[reportArgumentType]


@transform.discard_writes
def ahead(x: int, y: str = "a") -> float:
    return x * len(y)


class Rod:
    @transform.discard_writes()
    def step(self, x: float) -> str:
        return str(x)


assert_type(ahead(1, y="b"), float)
assert_type(transform.discard_writes(scale)(1), float)
assert_type(Rod().step(1.0), str)
ahead("no")  # pyright: ignore[reportArgumentType]
