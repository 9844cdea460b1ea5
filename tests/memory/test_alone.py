"""The memory half works without the state half: in a process in which no module of that can be imported."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import statetransform

PROGRAM = """
import importlib.abc, sys, types

FOLDER, SCRATCH = sys.argv[1:]
package = types.ModuleType("statetransform")  # without its first page, which imports both halves
package.__path__ = [FOLDER]
sys.modules["statetransform"] = package


class Wall(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        room = name.split(".")[1] if name.startswith("statetransform.") else None
        if room not in (None, "_memory", "_base", "_jax", "_version"):
            raise ImportError(f"the memory half imports {name}")


sys.meta_path.insert(0, Wall())
import jax
import jax.numpy as jnp
import numpy as np
from statetransform import _memory
from statetransform._memory.policies import loops

x = jnp.linspace(0.1, 1.0, 64)


def step(c, _):
    return jnp.sin(1.1 * c), c.sum()


def same(f, g, *args):
    np.testing.assert_allclose(jax.grad(f)(*args), jax.grad(g)(*args), rtol=1e-5)


def scanned(scan, **options):
    def f(x):
        c, ys = scan(step, x, None, length=40, **options)
        return (c**2).sum() + ys.sum()

    return f


same(scanned(_memory.scan, checkpoint=4), scanned(jax.lax.scan), x)
budget = _memory.MemoryBudget(8 * x.nbytes, disk="1 MiB", folder=SCRATCH)
same(scanned(_memory.scan, checkpoint=budget), scanned(jax.lax.scan), x)


def net(x):
    for _ in range(8):
        x = jnp.tanh(x @ x.T) @ x
    return x.sum()


square = jnp.ones((64, 64)) * 0.01
budget = _memory.MemoryBudget("100 kB")
same(lambda x: _memory.checkpoint(jax.make_jaxpr(net)(square), budget)(x)[0], net, square)
assert not budget.choices[-1].is_plain, budget.choices


def root(a):
    return jax.lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-5 * a, lambda x: (x + a / x) / 2, a)


few = _memory.checkpoint(jax.make_jaxpr(root)(4.0), loops(10))
assert abs(jax.grad(lambda a: few(a)[0])(4.0) - 0.25) < 1e-4
print("alone")
"""


def test_the_memory_half_runs_where_the_state_half_cannot_be_imported(tmp_path: pathlib.Path) -> None:
    folder = pathlib.Path(statetransform.__file__).parent
    command = [sys.executable, "-c", PROGRAM, str(folder), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "alone", done.stderr
