"""A cell of jaxley, by jaxley's own checkpoints and by `policies.loops`: `python -m benchmarks.jaxley_cell`.

Prints the temporary bytes of the compiled gradient, its FLOPs over those of jaxley's plain one, and its processor time:
the median of calls in turns, with the least and the most. Needs jaxley.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import jaxley as jx
from jaxley.channels import HH

import statetransform as st
from statetransform import inspect, policies, transform

from . import report
from .timing import temporary_bytes

STEPS, ROUNDS = 2000, 7


def make_cell() -> Any:
    """Five branches with Hodgkin-Huxley channels, a stimulus and a recording."""
    cell = jx.Cell(jx.Branch(jx.Compartment(), ncomp=4), parents=[-1, 0, 0, 1, 1])
    cell.insert(HH())
    cell.branch(0).loc(0.0).stimulate(jx.step_current(1.0, 2.0, 0.5, 0.025, 0.025 * STEPS))
    cell.branch(4).loc(1.0).record()
    cell.make_trainable("HH_gNa")
    cell.make_trainable("HH_gK")
    return cell


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    cell = make_cell()
    params = cell.get_parameters()
    cell.to_jax()
    for name in ("jaxnodes", "jaxedges"):  # `integrate` writes these two attributes
        st.attr(cell, name)

    def loss(params: Any, lengths: Any = None) -> jax.Array:
        v = jx.integrate(cell, params=params, delta_t=0.025, checkpoint_lengths=lengths)
        return jnp.mean((v + 65.0) ** 2)

    ways = {
        "jaxley": loss,
        "jaxley, `checkpoint_lengths=[45, 45]`": lambda p: loss(p, [45, 45]),
        "jaxley, `checkpoint_lengths=[13, 13, 12]`": lambda p: loss(p, [13, 13, 12]),
        "`policies.loops(20)`": transform.checkpoint(loss, policy=policies.loops(20)),
    }
    programs = {name: transform.jit(transform.grad(f)).lower(params).compile() for name, f in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS + 1):
        for name, program in programs.items():
            start = time.process_time()
            jax.block_until_ready(program(params))
            times[name].append(1e3 * (time.process_time() - start))
    rows, costs = [], inspect.compare(ways, params)
    for name, program in programs.items():
        found = times[name][1:]
        spread = f"{statistics.median(found):.0f} ({min(found):.0f} to {max(found):.0f})"
        work = f"{costs[name].flops / costs['jaxley'].flops:.2f}"
        rows.append([name, f"{temporary_bytes(program):,}", work, spread])
    report.keep("jaxley", ["the gradient of 2000 steps", "temporary bytes", "FLOPs", "processor time, ms"], rows)
    print("\n".join(report.lines_of(report.tables["jaxley"])))


if __name__ == "__main__":
    main()
