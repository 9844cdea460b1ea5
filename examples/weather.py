"""Where a storm comes from: the adjoint of dinosaur's atmosphere, within a budget.

    python examples/weather.py --days 6 --memory 40MB --out out

dinosaur solves the primitive equations of the atmosphere (it is the core of NeuralGCM). In
its test case of Jablonowski and Williamson (2006) a disturbance of the jet grows into a
chain of storms. The gradient of the pressure in one of them, with respect to the wind at
the start, says where an observation would have helped most. It runs backwards through the
forecast: a scan of six-hour windows, with a scan of time steps in each. `policies.loops`
checkpoints both without an edit, and the program compares dinosaur's own checkpoints.
"""

from __future__ import annotations

import argparse
import functools
import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from dinosaur import (
    coordinate_systems,
    primitive_equations,
    scales,
    sigma_coordinates,
    spherical_harmonic,
    time_integration,
    units,
    xarray_utils,
)
from dinosaur import primitive_equations_states as cases

import statetransform as st
from measuring import deviation, measure, show
from statetransform import policies, transform

HOURS = 6  # of a window


class Forecast:
    """The test case: its start, and the pressure after some windows."""

    def __init__(self, waves: int, layers: int, minutes: int, windows: int):
        self.windows, self.inner = windows, HOURS * 60 // minutes
        self.evaluations = 0
        specs = units.SimUnits.from_si()
        self.grid = spherical_harmonic.Grid.construct(waves, (3 * waves + 4) // 4)
        levels = sigma_coordinates.SigmaCoordinates.equidistant(layers)
        coords = coordinate_systems.CoordinateSystem(self.grid, levels)
        still, features = cases.steady_state_jw(coords, specs)
        self.still = still()
        self.start = self.still + cases.baroclinic_perturbation_jw(coords, specs)
        equations = primitive_equations.PrimitiveEquations(
            features[xarray_utils.REF_TEMP_KEY],
            primitive_equations.truncated_modal_orography(
                features[xarray_utils.OROGRAPHY], coords
            ),
            coords,
            specs,
        )
        dt = specs.nondimensionalize(minutes * scales.units.minute)
        self.scheme = time_integration.imex_rk_sil3(equations, dt)

    def step(self, state):
        jax.debug.callback(self.count, state.log_surface_pressure[0, 0, 0])
        return self.scheme(state)

    def count(self, _) -> None:
        self.evaluations += 1

    def pressure(self, spin: jax.Array, **scans) -> jax.Array:
        """On the ground at the end, in hPa, for a change of the vorticity at the start."""
        start = self.start.replace(
            vorticity=self.start.vorticity + self.grid.to_modal(spin)
        )
        run = time_integration.trajectory_from_step(
            self.step, self.windows, self.inner, post_process_fn=lambda _: None, **scans
        )
        final, _ = run(start)
        change = final.log_surface_pressure - self.still.log_surface_pressure
        return 1000 * jnp.exp(self.grid.to_nodal(change)[0])


def nested(n: int) -> functools.partial:
    """dinosaur's checkpoints: two loops whose lengths have the product n."""
    first = next(k for k in range(int(n**0.5), 0, -1) if n % k == 0)
    lengths = [n // first, first]
    return functools.partial(
        time_integration.nested_checkpoint_scan, nested_lengths=lengths
    )


def main(
    days: float = 6,
    waves: int = 21,
    layers: int = 8,
    minutes: int = 60,
    memory: str = "40MB",
    rounds: int = 3,
    out: str = "out",
) -> None:
    forecast = Forecast(waves, layers, minutes, round(24 * days / HOURS))
    steps = forecast.windows * forecast.inner
    spin = jnp.zeros((layers, *forecast.grid.nodal_shape))
    final = np.asarray(jax.jit(forecast.pressure)(spin))
    north = final - final.mean(0)
    north[:, : north.shape[1] // 2] = 0
    storm = np.unravel_index(north.argmin(), north.shape)
    print(f"{steps} steps; {final[storm]:.1f} hPa in the storm", flush=True)

    loss = lambda spin, **scans: forecast.pressure(spin, **scans)[storm]
    scans = {
        "outer_scan_fn": nested(forecast.windows),
        "inner_scan_fn": nested(forecast.inner),
    }
    treated = lambda k: transform.checkpoint(loss, policy=policies.loops(k))
    ways = {
        "dinosaur": loss,
        "dinosaur, nested": functools.partial(loss, **scans),
        "loops(4)": treated(4),
        memory: treated(st.MemoryBudget(memory)),
    }
    programs = {name: jax.jit(jax.grad(way)) for name, way in ways.items()}
    found = measure(programs, spin, rounds=rounds)
    slopes, rows = {}, []
    for name, program in programs.items():
        before = forecast.evaluations
        slopes[name] = np.asarray(program(spin))
        jax.effects_barrier()
        again = f"{(forecast.evaluations - before) / steps:.2f}"
        size, time = found[name]
        rows.append((name, size, again, time, deviation(slopes[name], slopes["dinosaur"])))
    show(
        ["a gradient", "memory, MB", "evaluations per step", "time", "relative error"], rows
    )

    _, (map_end, map_start, bars) = plt.subplots(
        1, 3, figsize=(12, 3), layout="constrained"
    )
    longitude, sine = forecast.grid.nodal_axes
    longitude, latitude = np.degrees(longitude), np.degrees(np.arcsin(sine))
    strongest = np.abs(slopes[memory]).max((1, 2)).argmax()
    for ax, field, title in (
        (map_end, north, f"pressure after {days:g} days"),
        (map_start, slopes[memory][strongest], "its gradient at the start"),
    ):
        bound = np.abs(field).max()
        levels = np.linspace(-bound, bound, 20)
        ax.contourf(longitude, latitude, field.T, levels=levels, cmap="RdBu_r")
        ax.plot(longitude[storm[0]], latitude[storm[1]], "k+", markersize=10)
        ax.set(title=title, ylim=(0, 90), xlabel="longitude", ylabel="latitude")
    drawn = bars.barh(
        list(found)[::-1],
        [size for size, _ in found.values()][::-1],
        color=["C0", "C0", "0.7", "0.7"],
    )
    bars.bar_label(drawn, fmt="%.3g", padding=3)
    bars.set(title="memory of a gradient (MB)")
    bars.margins(x=0.15)
    picture = pathlib.Path(out) / "weather.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(picture, dpi=110)
    print(f"picture: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=float, default=6, help="length of the forecast")
    parser.add_argument("--waves", type=int, default=21, help="greatest wave number")
    parser.add_argument("--layers", type=int, default=8, help="layers of the atmosphere")
    parser.add_argument("--minutes", type=int, default=60, help="minutes in a time step")
    parser.add_argument(
        "--memory", default="40MB", help="bytes that the loops may store, such as 40MB"
    )
    parser.add_argument("--rounds", type=int, default=3, help="timed runs of each way")
    parser.add_argument("--out", default="out", help="folder for the picture")
    main(**vars(parser.parse_args()))
