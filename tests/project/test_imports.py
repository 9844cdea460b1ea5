"""What importing the package brings in. (The linter checks which way imports run within it.)"""

from __future__ import annotations

import ast
import os
import pathlib
import subprocess
import sys

import statetransform

ROOT = pathlib.Path(statetransform.__file__).parent
EXTRAS = ["rich", "matplotlib", "tqdm", "flax", "brainstate", "equinox", "sklearn", "orbax", "optax", "scipy.stats"]


def python(code: str) -> str:
    """Runs code in an interpreter of its own, warnings being errors."""
    env = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env={**env, "PYTHONPATH": str(ROOT.parent), "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_starts_no_device_and_changes_no_setting_of_jax() -> None:
    code = """
import jax
before = dict(jax.config.values)
import statetransform
assert dict(jax.config.values) == before
jax.config.update("jax_num_cpu_devices", 3)  # refused once a device was started
print(len(jax.devices()))
"""
    assert python(code).strip() == "3"


def test_the_package_has_a_marker_for_type_checkers() -> None:
    assert (ROOT / "py.typed").exists()


def test_every_module_says_what_it_holds() -> None:
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text())
        assert not tree.body or ast.get_docstring(tree), path


def test_importing_brings_in_no_extra_and_a_model_needs_none() -> None:
    code = f"import sys, statetransform; print([m for m in {EXTRAS} if m in sys.modules])"
    code += """
import statetransform as st
s = st.State(2.0)
step = st.transform.jit(st.transform.grad(st.transform.checkpoint(lambda x: x * s.value)))
print(float(step(1.0)))
"""
    assert python(code).split() == ["[]", "2.0"]
