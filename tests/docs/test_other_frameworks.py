"""Python on the pages that is no doctest runs where its framework is installed, and computes what the page says."""

from __future__ import annotations

import ast
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

DOCS = pathlib.Path(__file__).parent.parent.parent / "docs"
BLOCK = re.compile(r"^```python\n((?!>>>).*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[Any]:
    pages = [page for page in sorted(DOCS.glob("**/*.md")) if "_build" not in page.parts]
    return [
        pytest.param(page, block, id=f"{page.stem}-{i}")
        for page in pages
        for i, block in enumerate(BLOCK.findall(page.read_text()))
    ]


def imported(block: str) -> list[str]:
    """The packages that a block imports."""
    nodes = list(ast.walk(ast.parse(block)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return sorted({name.partition(".")[0] for name in names})


def by_hand(w: jax.Array) -> jax.Array:
    """The program on the page for those who come from elsewhere."""

    def body(carry: Any, _: Any) -> Any:
        mean, x = carry
        y = jnp.tanh(w @ x)
        return (0.9 * mean + 0.1 * y, y), None

    (mean, x), _ = jax.lax.scan(body, (jnp.zeros(3), jnp.ones(3)), length=100)
    return (x**2).sum() + mean.sum()


@pytest.mark.filterwarnings("default")  # of the frameworks themselves
@pytest.mark.parametrize(("page", "block"), blocks())
def test_what_a_page_shows_runs(page: pathlib.Path, block: str) -> None:
    for package in imported(block):
        pytest.importorskip(package)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(block, str(page), "exec"), namespace)
    if page.name == "coming-from.md":
        assert jnp.allclose(namespace["gradient"], jax.grad(by_hand)(jnp.eye(3) * 0.5), atol=1e-6)
