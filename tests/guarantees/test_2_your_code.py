"""Your code is everything but JAX, NumPy, SciPy, Python itself and this package, wherever it is installed."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import textwrap
import venv

import jax

import statetransform as st

PACKAGE = """
    import jax.numpy as jnp
    from statetransform import State, transform

    total, GAIN = State(jnp.float32(0), name="total"), 2.0

    class Net:
        def __init__(self):
            self.gain, self.name = 1.0, "net"

        @transform.jit
        def out(self, x):
            return x * self.gain

    @transform.jit
    def f(x):
        total.value = total.value + x
        return x * GAIN
"""
USE = """
    import importlib, json, sys, warnings
    warnings.simplefilter("error")
    import jax, jax.numpy as jnp
    from statetransform import State, inspect, transform
    weights = State(jnp.ones((3, 3)))

    def checked(x):  # its callback gets at what JAX keeps of its own between calls
        return jax.lax.cond(jnp.all(x < 99), lambda x: x, lambda x: (jax.debug.callback(str, x), x)[1], x)

    @transform.jit
    @transform.value_and_grad(states=weights)
    def first(x):
        return jnp.sum(transform.for_loop(lambda row: jnp.tanh(checked(row @ weights.value)), x))

    for scale in range(4):  # before JAX has traced anything else
        first(jnp.ones((4, 3)) * scale)
    for name in ("code", "queue"):
        sys.modules.pop(name, None)
    x, results = jnp.float32(2), {}
    for name in sys.argv[1:]:
        model = importlib.import_module(f"{name}.model")
        found = [float(model.f(x)) for _ in range(4)]
        model.GAIN = 5.0
        found += [float(model.f(x)) for _ in range(2)]
        net = model.Net()
        found.append(float(net.out(x)))
        net.gain, net.name = 5.0, "other"
        found += [float(net.out(x)), float(model.total.value)]
        results[name] = [model.__file__, found, len(inspect.explain_retrace(model.f))]
    print(json.dumps([jax.__file__, len(inspect.explain_retrace(first)), results]))
"""


def install(folder: pathlib.Path, name: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("")
    (folder / name / "model.py").write_text(textwrap.dedent(PACKAGE))


def test_a_package_is_followed_wherever_it_is(tmp_path: pathlib.Path) -> None:
    """In an environment of its own, which finds JAX in the folder of another one, as overlays do."""
    venv.create(tmp_path / "env", with_pip=False)
    found = {"base": str(tmp_path / "env"), "platbase": str(tmp_path / "env")}
    site = pathlib.Path(sysconfig.get_path("purelib", "venv", found))
    python = pathlib.Path(sysconfig.get_path("scripts", "venv", found)) / pathlib.Path(sys.executable).name
    on_path, editable = tmp_path / "path", tmp_path / "src"
    folders = {"mine": on_path, "code": on_path, "installed": site, "developed": editable}
    for name, folder in folders.items():
        install(folder, name)
    ours, jaxs = (str(pathlib.Path(module.__file__).parents[1]) for module in (st, jax))  # type: ignore[arg-type]
    (site / "overlay.pth").write_text("\n".join([ours, jaxs, str(editable)]))
    env = {**os.environ, "PYTHONPATH": str(on_path), "JAX_PLATFORMS": "cpu"}
    command = [python, "-c", textwrap.dedent(USE), *folders]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    jax_file, first_traces, results = json.loads(done.stdout)
    assert jax_file.startswith(jaxs)
    assert first_traces == 1
    for name, folder in folders.items():
        file, values, traces = results[name]
        assert file.startswith(str(folder))
        assert values == [4.0] * 4 + [10.0] * 2 + [2.0, 10.0, 12.0]
        assert traces == 2
