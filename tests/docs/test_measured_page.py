"""The page of benchmarks keeps what other runs measured, and says where a peer is faster."""

from __future__ import annotations

import json
import pathlib
import re

import jax
import jaxlib
import pytest

import statetransform as st
from benchmarks import loops, report
from benchmarks.examples import SHOWN
from statetransform import transform

ROOT = pathlib.Path(__file__).parent.parent.parent
KEPT = json.loads((ROOT / "docs" / "measured.json").read_text())


@pytest.mark.parametrize("example", SHOWN)
def test_the_page_of_an_example_shows_what_was_measured(example: str) -> None:
    """And its columns are those that the program prints: else a run would leave its figures as they are."""
    code = (ROOT / "examples" / f"{example}.py").read_text()
    columns = re.search(r'(?:COLUMNS = |show\()\[("[^]]*")\]', code)
    assert columns is not None
    names = re.findall(r'"([^"]*)"', columns[1])
    (table,) = [table for title, table in KEPT.items() if f"examples/{example}.py" in title]
    assert table["columns"] == names
    page = (ROOT / "docs" / "examples" / f"{example}.md").read_text()
    assert "\n".join(report.lines_of(table)) in page


@pytest.mark.optimized
@pytest.mark.parametrize("size", ["1MB", "4MB"])
def test_a_loop_within_a_budget_takes_the_bytes_that_the_page_on_memory_shows(size: str) -> None:
    """If not: `python -m benchmarks replaced --report docs/measured.md --pages docs/memory.md`."""
    table = KEPT["matmul, 1000 steps: what takes the place of other loops"]
    if f"jaxlib {jaxlib.__version__}," not in table["versions"]:
        pytest.skip("the bytes are those of another compiler")
    budget = st.MemoryBudget(size)
    scan = lambda f, init, xs, n: transform.scan(f, init, xs, n, checkpoint=budget)
    compiled = jax.jit(jax.grad(lambda w: loops.matmul(scan, w, 1000))).lower(loops.scaled(128)).compile()
    found = compiled.memory_analysis().temp_size_in_bytes / 1e6
    evaluations = budget.choices[-1].evaluations / 1000
    row = f'| `transform.scan`, `checkpoint=MemoryBudget("{size}")` | {evaluations:.3f} | {found:.2f} |'
    assert row in report.lines_of(table)
    assert row in (ROOT / "docs" / "memory.md").read_text()


def test_the_page_of_nnx_shows_what_was_measured() -> None:
    table = KEPT["Cells of flax.nnx: time of a compiled call that writes them all"]
    page = (ROOT / "docs" / "coming-from" / "nnx.md").read_text()
    for name in ("argument", "nnx.split, jax.jit", "nnx.jit"):
        place = table["columns"].index(name)
        cells = " | ".join(row[place] for row in table["rows"])
        assert f"| {cells} |" in page, name


def test_the_page_is_that_of_the_figures_beside_it() -> None:
    assert (ROOT / "docs" / "measured.md").read_text() == report.markdown(KEPT)
