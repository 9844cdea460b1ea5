"""A loop of diffrax's steps, reversed by `policies.loops` and by diffrax's own adjoint.

    python -m benchmarks.solvers --steps 400 --size 10000

Prints, for each number of stored carries, how often one gradient evaluates the vector field, the temporary bytes of the
compiled gradient in carries, and its time (the least of five). Needs diffrax.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp

from statetransform import policies, transform

from .timing import temporary_bytes


def by_loop(field: Callable[..., Any], steps: int, k: int) -> Callable[[Any], Any]:
    """A raw `while_loop` around diffrax's solver."""
    term, solver, h = diffrax.ODETerm(field), diffrax.Tsit5(), 1.0 / steps

    def f(y: Any) -> Any:
        def body(c: Any) -> Any:
            i, y, state = c
            y, _, _, state, _ = solver.step(term, i * h, (i + 1) * h, y, None, state, made_jump=False)
            return i + 1, y, state

        return jax.lax.while_loop(lambda c: c[0] < steps, body, (0, y, solver.init(term, 0.0, h, y, None)))[1].sum()

    return transform.checkpoint(f, policy=policies.loops(k))


def by_adjoint(field: Callable[..., Any], steps: int, k: int) -> Callable[[Any], Any]:
    """diffrax's own loop with its adjoint for few carries."""
    adjoint = diffrax.RecursiveCheckpointAdjoint(checkpoints=k)
    term, solver = diffrax.ODETerm(field), diffrax.Tsit5()
    options = {"adjoint": adjoint, "max_steps": steps + 1}
    return lambda y: jnp.sum(jnp.asarray(diffrax.diffeqsolve(term, solver, 0.0, 1.0, 1.0 / steps, y, **options).ys))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--size", type=int, default=10_000)
    sizes = parser.parse_args()
    y = jnp.linspace(0.1, 1.0, sizes.size)
    print(f"{'':34}{'evaluations':>12}{'carries':>10}{'seconds':>10}")
    for k in (5, 10, 20, 40):
        for name, make in (("policies.loops", by_loop), ("RecursiveCheckpointAdjoint", by_adjoint)):
            calls: list[int] = []

            def noted(t: Any, y: Any, args: Any, calls: list[int] = calls) -> Any:
                jax.debug.callback(lambda: calls.append(1))
                return jnp.sin(y) - t * y

            jax.block_until_ready(jax.jit(jax.grad(make(noted, sizes.steps, k)))(y))
            jax.effects_barrier()
            gradient = jax.jit(jax.grad(make(lambda t, y, args: jnp.sin(y) - t * y, sizes.steps, k)))
            compiled = gradient.lower(y).compile()
            carries = temporary_bytes(compiled) / y.nbytes
            taken = []
            for _ in range(5):
                start = time.perf_counter()
                jax.block_until_ready(compiled(y))
                taken.append(time.perf_counter() - start)
            print(f"{name + f'({k})':34}{len(calls):12}{carries:10.1f}{min(taken):10.3f}")


if __name__ == "__main__":
    main()
