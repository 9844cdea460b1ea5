"""What the pages show in the words of other frameworks runs, and computes what the page says."""

from __future__ import annotations

import importlib
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

DOCS = pathlib.Path(__file__).parent.parent.parent / "docs"
BLOCK = re.compile(r"^```python\n((?!>>>).*?)^```$", re.MULTILINE | re.DOTALL)
FRAMEWORK = re.compile(r"^(?:import|from) (brainstate|flax|equinox)", re.MULTILINE)


def blocks(page: str) -> list[Any]:
    """The blocks of a page that are no doctests, each with the framework that it imports."""
    found = BLOCK.findall((DOCS / page).read_text())
    imported = [FRAMEWORK.search(block) for block in found]
    return [
        pytest.param(block, name and name[1], id=f"{page}-{i}")
        for i, (block, name) in enumerate(zip(found, imported, strict=True))
    ]


def run(block: str, framework: str) -> dict[str, Any]:
    try:
        importlib.import_module(framework)
    except ImportError:
        pytest.skip(f"{framework} is not installed")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(block, "<page>", "exec"), namespace)
    return namespace


def by_hand(w: jax.Array) -> jax.Array:
    def body(carry: Any, _: Any) -> Any:
        mean, x = carry
        y = jnp.tanh(w @ x)
        return (0.9 * mean + 0.1 * y, y), None

    (mean, x), _ = jax.lax.scan(body, (jnp.zeros(3), jnp.ones(3)), length=100)
    return (x**2).sum() + mean.sum()


@pytest.mark.filterwarnings("default")  # of the frameworks themselves
@pytest.mark.parametrize(("block", "framework"), blocks("coming-from.md"))
def test_the_same_program_has_the_same_gradient(block: str, framework: str) -> None:
    found = run(block, framework)["gradient"]
    assert jnp.allclose(found, jax.grad(by_hand)(jnp.eye(3) * 0.5), atol=1e-6)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("block", "framework"), blocks("foreign.md"))
def test_states_of_other_frameworks_are_used_as_shown(block: str, framework: str) -> None:
    run(block, framework)


def test_no_other_page_shows_python_that_does_not_run() -> None:
    known = {DOCS / "coming-from.md", DOCS / "foreign.md"}
    pages = [page for page in DOCS.glob("**/*.md") if page not in known and "_build" not in page.parts]
    assert not [page.name for page in pages if BLOCK.search(page.read_text())]
