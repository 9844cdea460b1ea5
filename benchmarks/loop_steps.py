"""Steps of simulations whose compiled gradients show how often a loop holds its stored carries.

Run `python -m benchmarks.loop_steps` for the table: temporary bytes of the compiled gradient in carries, beyond those
that `checkpoint=` names. The last carry is an output of the program, as it is where a state keeps it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from rich.table import Table

from statetransform import transform

from . import report
from .timing import temporary_bytes


@jax.custom_jvp
def spike(v: Any) -> Any:
    """A step function with a surrogate gradient."""
    return (v > 0).astype(v.dtype)


spike.defjvp(lambda p, t: (spike(*p), t[0] / (1 + 10 * jnp.abs(p[0])) ** 2))


def laplacian(c: Any) -> Any:
    return jnp.roll(c, 1, 0) - 2 * c + jnp.roll(c, -1, 0)


def leapfrog(c: Any, r: Any) -> Any:
    u, before = c
    return 2 * u - before + 0.1 * r * laplacian(u), u


def burgers(c: Any, r: Any) -> Any:
    return c - 0.05 * c * (jnp.roll(c, -1, 0) - jnp.roll(c, 1, 0)) + 0.1 * r * laplacian(c)


def spiking(c: Any, r: Any) -> Any:
    v, s = c
    v = 0.95 * v * (1 - s) + r
    return v, spike(v - 1.0)


def network(c: Any, r: Any) -> Any:
    v, s, adaptation = c
    v = 0.95 * v * (1 - s) + r - 0.1 * adaptation
    s = spike(v - 1.0)
    return v, s, 0.9 * adaptation + s


# A step from carry and parameter to carry, and the number of arrays in the carry.
STEPS: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "linear": (lambda c, r: r * c, 1),
    "logistic": (lambda c, r: r * c * (1 - c), 1),
    "relaxation": (lambda c, r: 0.99 * c + 0.01 * jnp.sin(r * c), 1),
    "sine of a stencil": (lambda c, r: jnp.sin(c + 0.1 * laplacian(c)) * r, 1),
    "leapfrog": (leapfrog, 2),
    "rod": (lambda c, r: c + 0.1 * r * laplacian(c), 1),
    "Burgers": (burgers, 1),
    "tanh": (lambda c, r: jnp.tanh(r * c + 0.1), 1),
    "leaky": (lambda c, r: c + 0.1 * (r - c), 1),
    "spiking": (spiking, 2),
    "matmul": (lambda c, r: jnp.tanh(r * (c @ jnp.full((c.shape[1],) * 2, 0.01))), 1),
    "network": (network, 3),
}


def start(name: str, size: int, sharding: Any = None) -> Any:
    """The initial carry: arrays of `size` x 64."""
    x = jax.device_put(jnp.linspace(0.1, 0.9, size * 64).reshape(size, 64), sharding)
    count = STEPS[name][1]
    return x if count == 1 else tuple(x / (i + 1) for i in range(count))


def gradient(name: str, n: int, checkpoint: Any, is_unknown: bool = False) -> Callable[[Any, Any], Any]:
    """`value_and_grad` in the parameter, of a loss of the last carry, which is an output, too."""
    step = STEPS[name][0]

    def loss(r: Any, init: Any) -> Any:
        if is_unknown:
            body = lambda s: (s[0] + 1, step(s[1], r))
            carry = transform.while_loop(lambda s: s[0] < n, body, (0, init), checkpoint=checkpoint)[1]
        else:
            carry = transform.scan(lambda c, _: (step(c, r), None), init, None, n, checkpoint=checkpoint)[0]
        return sum((x**2).sum() for x in jax.tree.leaves(carry)), carry

    return jax.value_and_grad(loss, has_aux=True)


def temporary(name: str, n: int, checkpoint: Any, is_unknown: bool = False, size: int = 512, mesh: Any = None) -> float:
    """Temporary bytes of one device as compiled, over those of its carry."""
    init = start(name, size, None if mesh is None else jax.NamedSharding(mesh, jax.P(*mesh.axis_names)))
    compiled = jax.jit(gradient(name, n, checkpoint, is_unknown)).lower(jnp.float32(0.9), init).compile()
    carry = sum(x.nbytes for x in jax.tree.leaves(init)) / (1 if mesh is None else mesh.size)
    return temporary_bytes(compiled) / carry


def loop_steps(ks: tuple[int, ...] = (10, 20, 40), n: int = 400) -> None:
    """The table of temporary carries beyond `checkpoint=k`."""
    table = Table(title=f"Carries in temporary memory beyond checkpoint=k, {n} steps, known / unknown length")
    for column in ("step", *[f"k = {k}" for k in ks]):
        table.add_column(column, justify="left" if column == "step" else "right")
    for name in STEPS:
        found = [[temporary(name, n, k, is_unknown) - k for is_unknown in (False, True)] for k in ks]
        table.add_row(name, *[f"{known:.1f} / {unknown:.1f}" for known, unknown in found])
    report.show(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    loop_steps(n=parser.parse_args().steps)
