"""In a notebook, reports show themselves as HTML."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="the notebook test needs nbclient and ipykernel")
nbformat = pytest.importorskip("nbformat", reason="the notebook test needs nbformat")
pytest.importorskip("ipykernel", reason="the notebook test needs ipykernel")

CELLS = [
    """
import jax, jax.numpy as jnp
from statetransform import Param, inspect, policies, transform
import statetransform as st; w = Param(jnp.eye(4), name="w")
def f(x):
    return jnp.sin(transform.checkpoint_name(jnp.sin(w.value @ x), "a")).sum()
x = jnp.ones(4)
""",
    "inspect.residuals(f, x)",
    "inspect.fwd_bwd(f, x)",
    'inspect.compare({"plain": f, "all again": transform.checkpoint(f), "products": policies.dots_saveable}, x)',
    "inspect.cost(f, x)",
    "inspect.timeline(f, x)",
    "policies.plan(f, x)",
    "st.schedule(100, 5)",
    "w",
    """
budget = st.MemoryBudget("1 kB")
jax.grad(lambda x: transform.scan(lambda c, _: (jnp.sin(c), None), x, length=100, checkpoint=budget)[0].sum())(x)
budget
""",
]
SHOWN = ["state", "forward of f", "recompute", "FLOPs", "alive", "planned", "evaluations", "[4,4]", "chosen"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    root = pathlib.Path(__file__).parent.parent.parent
    folder = tmp_path_factory.mktemp("notebook")
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "IPYTHONDIR": str(folder), "JUPYTER_RUNTIME_DIR": str(folder)}
    client = nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}})
    client.execute(env=env)
    return [cell.outputs for cell in book.cells]


@pytest.mark.filterwarnings("default")  # of the notebook tools themselves
@pytest.mark.parametrize("i", range(1, len(CELLS)))
def test_a_report_is_html(i: int, outputs: list[Any]) -> None:
    html = "".join(output.data.get("text/html", "") for output in outputs[i] if output.output_type == "execute_result")
    assert "<" in html and SHOWN[i - 1] in html
    assert "Traceback" not in str(outputs[i])


@pytest.mark.filterwarnings("default")
def test_a_line_of_a_cell_is_called_as_the_notebook_calls_it(outputs: list[Any]) -> None:
    html = outputs[1][0].data["text/html"]
    assert "Cell In[1]:3" in html  # the state
    assert "Cell In[1]:5" in html  # what is computed from it
    assert "ipykernel" not in html
