"""What was found about a gradient step serves the next budget, and the next process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import policies, transform

# What is known is forgotten as in another process, and compilations are counted: no user does either.
from statetransform._memory.plans import choose, measured, plan_cache, solve

pytestmark = pytest.mark.filterwarnings("ignore::statetransform.policies.PolicyWarning")


def loss(x: Any, ws: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return (x**2).sum()


ARGS = jnp.ones((96, 16)), [jnp.full((16, 16), 0.1)] * 8
PLAIN = 8 * 96 * 16 * 4


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list with the bytes of each step that is compiled; nothing is known at the start."""
    found: list[int] = []
    compiled = measured.compiled_step

    def counted(*args: Any, **options: Any) -> Any:
        step = compiled(*args, **options)
        found.append(step.bytes or 0)
        return step

    monkeypatch.setattr(measured, "compiled_step", counted)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For compiled programs."""
    monkeypatch.setattr(plan_cache, "folder_for_programs", lambda: tmp_path)
    return tmp_path


def gradient(**options: Any) -> Any:
    budget = policies.fit(int(options.pop("share", 0.6) * PLAIN), **options)
    return jax.grad(transform.checkpoint(lambda *args: loss(*args), policy=budget), argnums=1)(*ARGS)


def test_the_plain_step_is_compiled_once_for_all_budgets(sizes: list[int], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "statetransform"):
        gradient(share=0.7)
        first = len(sizes)
        gradient(share=0.6)
    assert len(sizes) > first
    assert caplog.messages.count("checkpoint: compiling the plain step") == 1


def test_a_plain_step_without_calls_is_compiled_once_though_its_text_is_read(sizes: list[int]) -> None:
    gradient(share=0.95)
    assert sizes.count(max(sizes)) == 1


def test_another_budget_for_the_same_function_looks_for_no_plan_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient(share=0.5)
    monkeypatch.setattr(solve.Curve, "_step", None)
    gradient(share=0.7)


def test_the_same_budget_for_the_same_function_plans_and_compiles_nothing(sizes: list[int]) -> None:
    expected = gradient()
    before = len(sizes)
    again = gradient()
    assert len(sizes) == before
    assert all((a == b).all() for a, b in zip(expected, again, strict=True))


def test_a_plan_that_is_trusted_compiles_nothing(sizes: list[int]) -> None:
    gradient(compile=False)
    assert not sizes


def test_another_process_finds_it_in_the_folder_of_compiled_programs(
    sizes: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gradient()
    assert list(folder.glob("statetransform/*.json"))
    count = len(sizes)
    plan_cache._known.clear()  # as in another process
    monkeypatch.setattr(choose.Planner, "candidates", None)  # nor does it plan
    again = gradient()
    assert len(sizes) == count
    assert all((a == b).all() for a, b in zip(expected, again, strict=True))


def test_the_folder_is_that_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    before = jax.config.jax_compilation_cache_dir
    try:
        for name, expected in ((None, None), ("gs://bucket/programs", None), ("/programs", Path("/programs"))):
            jax.config.update("jax_compilation_cache_dir", name)
            assert plan_cache.folder_for_programs() == expected
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.parametrize("text", ["no json", '{"plain": 1}', None])
def test_a_file_that_does_not_belong_here_is_left_out(sizes: list[int], folder: Path, text: str | None) -> None:
    expected = gradient()
    (file,) = folder.glob("statetransform/*.json")
    if text is None:  # a plan of another graph
        found = json.loads(file.read_text())
        for row in (*found["answers"].values(), *found["tried"]):
            row[1] = [*row[1], 10_000]
        text = json.dumps(found)
    file.write_text(text)
    plan_cache._known.clear()
    again = gradient()
    assert len(sizes) > 2
    assert all(jnp.allclose(a, b, atol=1e-6) for a, b in zip(expected, again, strict=True))


def test_a_bar_moves_while_a_function_is_planned(
    sizes: list[int], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from statetransform._memory.plans import meter

    pytest.importorskip("tqdm")
    monkeypatch.setattr(meter.Meter.__init__, "__defaults__", (0.0,))
    gradient(share=0.65, progress=True)
    assert "compiling" in capfd.readouterr().err


PROGRAM = """
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from statetransform import policies, transform

jax.config.update("jax_compilation_cache_dir", {folder!r})
mesh = jax.make_mesh((2, 2), ("alpha", "beta"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
layer = jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("alpha", "beta"), out_specs=P("alpha", "beta"))

def loss(x):
    for _ in range(8):
        x = jnp.sin(layer(x))
    return x.sum()

jax.jit(jax.grad(transform.checkpoint(loss, policy=policies.fit(20_000))))(jnp.ones((64, 64)))
"""


def test_a_process_with_another_order_of_sets_finds_what_the_first_has_planned(tmp_path: Path) -> None:
    def ran(seed: int, program: str) -> str:
        flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-W", "ignore", "-c", program]
        return subprocess.run(command, env={**os.environ, **flags}, check=True, capture_output=True, text=True).stdout

    seeds = {ran(seed, "print(*{'alpha', 'beta'})"): seed for seed in range(8)}
    assert len(seeds) == 2
    found = []
    for seed in seeds.values():
        ran(seed, PROGRAM.format(folder=str(tmp_path)))
        found.append({path.name: path.stat().st_mtime_ns for path in tmp_path.glob("statetransform/*.json")})
    assert len(found[0]) == 1 and found[0] == found[1]


def test_what_is_kept_depends_on_the_code_of_loops_and_jaxprs(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or b"")
    plan_cache._code.__wrapped__()
    package = Path(plan_cache.__file__).parents[2]
    assert {str(path.parent.relative_to(package)) for path in read} >= {"_jax", "_memory/loops", "_memory/programs"}
