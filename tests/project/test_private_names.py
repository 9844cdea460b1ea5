"""What is not public in JAX is used in `statetransform/_jaxcompat` only."""

from __future__ import annotations

import ast
import pathlib

import statetransform

ROOT = pathlib.Path(statetransform.__file__).parent
#: Modules of JAX that are private, or that JAX does not document for users.
MODULES = ("jax._src", "jax.core", "jax.interpreters", "jax.extend.linear_util", "jax.extend.source_info_util")
#: Attributes of its objects, and methods, that no documentation promises.
ATTRIBUTES = {
    "__version__", "ctx", "debug_info", "func_src_info", "get_bind_params", "linear_util", "name_stack", "source_info",
    "source_info_util", "str_short", "SymbolicZero",
}  # fmt: skip
#: Primitives that are bound by hand.
BOUND = {"convert_element_type_p", "name_p", "remat_p"}
#: An adapter says for which release of its framework it was written.
ALLOWED = {"_adapters": {"__version__"}}


def private_names(path: pathlib.Path) -> set[str]:
    """The names of the lists above that a module uses."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
            found |= {node.attr} & ATTRIBUTES
            if node.attr == "bind":
                found |= {f"{name}.bind" for name in BOUND if ast.unparse(node.value).split(".")[-1] == name}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} & ATTRIBUTES - {"__version__"}  # as in `getattr(eqn, "ctx")`
        found |= {module for module in MODULES for name in names if f"{name}.".startswith(f"{module}.")}
    return found


def test_what_is_not_public_jax_is_in_jaxcompat_only() -> None:
    for path in ROOT.rglob("*.py"):
        folder = path.relative_to(ROOT).parts[0]
        if folder != "_jaxcompat":
            assert private_names(path) - ALLOWED.get(folder, set()) == set(), path


def test_the_search_for_private_names_finds_each_way_to_use_one(tmp_path: pathlib.Path) -> None:
    ways = {
        "import jax.core": {"jax.core"},
        "from jax import core": {"jax.core"},
        "from jax.interpreters import ad": {"jax.interpreters"},
        "from jax.extend import source_info_util": {"jax.extend.source_info_util"},
        "x = jax.core.eval_jaxpr(j, ())": {"jax.core"},
        "import jax._src.core as c": {"jax._src"},
        "stack = eqn.source_info.name_stack": {"source_info", "name_stack"},
        "info = getattr(jaxpr, 'debug_info', None)": {"debug_info"},
        "y = primitives.remat_p.bind(x)": {"remat_p.bind"},
        "import jax.extend.core as jex; y = jex.Literal": set(),
    }
    path = tmp_path / "module.py"
    for text, names in ways.items():
        path.write_text(text)
        assert private_names(path) == names, text
