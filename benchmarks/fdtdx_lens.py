"""A lens of fdtdx, by fdtdx's own gradients and by `policies.loops`: `python -m benchmarks.fdtdx_lens`.

A row of pillars focuses a pulse of light. Prints the temporary bytes of each compiled gradient and its processor time
over that of the first: the median of calls in turns, with the least and the most. Needs fdtdx.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import fdtdx
import jax
import jax.numpy as jnp
import numpy as np
from fdtdx.fdtd.fdtd import custom_fdtd_forward

import statetransform as st
from statetransform import policies, transform

from . import report
from .timing import temporary_bytes

CELL, EDGE, WIDTH, HEIGHT = 50e-9, 10, 120, 80  # meters; cells of the absorbing layer, across, from top to bottom
KEY = jax.random.key(0)
CENTER = fdtdx.WaveCharacter(wavelength=1e-6)


class Lens:
    """A pulse from above, pillars below it, and a detector that sums up the energy in the focus."""

    def __init__(self, gradient: Any = None):
        volume = fdtdx.SimulationVolume(partial_grid_shape=(WIDTH, 1, HEIGHT))
        around = fdtdx.BoundaryConfig.from_uniform_bound(
            thickness=EDGE, override_types={"min_y": "periodic", "max_y": "periodic"}
        )
        edges, places = fdtdx.boundary_objects_from_config(around, volume)
        pulse = fdtdx.GaussianPulseProfile(
            spectral_width=fdtdx.WaveCharacter(wavelength=5e-6),
            center_wave=CENTER,
        )
        beam = fdtdx.GaussianPlaneSource(
            partial_grid_shape=(WIDTH - 2 * EDGE, 1, 1),
            wave_character=CENTER,
            temporal_profile=pulse,
            fixed_E_polarization_vector=(1, 0, 0),
            radius=WIDTH * CELL / 2,
            direction="-",
        )
        pillars = fdtdx.Device(
            name="pillars",
            partial_grid_shape=(WIDTH - 4 * EDGE, 1, 10),
            partial_voxel_grid_shape=(2, 1, 10),
            materials={"air": fdtdx.Material(permittivity=1.0), "glass": fdtdx.Material(permittivity=4.0)},
            param_transforms=[],
        )
        focus = fdtdx.EnergyDetector(name="focus", partial_grid_shape=(4, 1, 4), reduce_volume=True)
        top = HEIGHT // 2 - EDGE
        above = {beam: top - 4, pillars: top - 15, focus: -HEIGHT // 4}
        for thing, cells in above.items():
            where = {"own_positions": (0, 0, 0), "other_positions": (0, 0, 0), "grid_margins": (0, 0, cells)}
            places.append(thing.place_relative_to(volume, axes=(0, 1, 2), **where))
        config = fdtdx.SimulationConfig(
            time=60e-15,
            grid=fdtdx.UniformGrid(spacing=CELL),
            backend=jax.default_backend(),
            gradient_config=gradient,
        )
        things = [volume, *edges.values(), *above]
        self.objects, self.arrays, self.params, self.config, _ = fdtdx.place_objects(things, config, places, KEY)

    def light(self, params: Any) -> jax.Array:
        """By the way of the gradient that it has; without one, by the plain loop, a `while_loop`."""
        arrays, objects, _ = fdtdx.apply_params(self.arrays, self.objects, params, KEY)
        if self.config.gradient_config is not None:
            ended = fdtdx.run_fdtd(arrays, objects, self.config, KEY, show_progress=False)
        else:
            span = {"reset_container": True, "record_detectors": True, "start_time": 0, "show_progress": False}
            steps = self.config.time_steps_total
            ended = custom_fdtd_forward(arrays, objects, self.config, KEY, end_time=steps, **span)
        return ended[1].detector_states["focus"]["energy"].sum()


def measured(ways: dict[str, tuple[Lens, Callable[[Any], jax.Array]]], rounds: int) -> list[list[str]]:
    """Bytes, time and relative difference of the gradients."""
    params = jax.tree.map(lambda x: jnp.full_like(x, 0.5), next(iter(ways.values()))[0].params)
    programs = {name: jax.jit(jax.grad(f)).lower(params).compile() for name, (_, f) in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in programs}
    found = {}
    for _ in range(rounds + 1):
        for name, program in programs.items():
            start = time.process_time()
            found[name] = np.asarray(jax.block_until_ready(program(params))["pillars"])
            times[name].append(time.process_time() - start)
    first, rows = next(iter(programs)), []
    for name, program in programs.items():
        ratios = [a / b for a, b in zip(times[name][1:], times[first][1:], strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        off = np.abs(found[name] - found[first]).max() / np.abs(found[first]).max()
        rows.append([name, f"{temporary_bytes(program):,}", spread, f"{off:.0e}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of each way")
    kept = Lens(fdtdx.GradientConfig(method="checkpointed", num_checkpoints=20))
    back = Lens(fdtdx.GradientConfig(method="reversible", recorder=fdtdx.Recorder(modules=[])))
    plain = Lens()
    treated = lambda checkpoint: transform.checkpoint(plain.light, policy=policies.loops(checkpoint))
    ways = {
        "fdtdx, `checkpointed`, 20": (kept, kept.light),
        "fdtdx, `reversible`": (back, back.light),
        "`policies.loops(20)`": (plain, treated(20)),
        '`policies.loops(st.MemoryBudget("20MB"))`': (plain, treated(st.MemoryBudget("20MB"))),
    }
    title = f"a lens, {plain.config.time_steps_total} steps"
    columns = [title, "temporary bytes", "processor time", "relative difference"]
    report.keep(title, columns, measured(ways, parser.parse_args().rounds))
    print("\n".join(report.lines_of(report.tables[title])))


if __name__ == "__main__":
    main()
