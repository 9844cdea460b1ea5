"""What is not public in JAX is used in `_jax` only, and other frameworks are named in `_frameworks` only."""

from __future__ import annotations

import ast
import pathlib
import re

import statetransform

ROOT = pathlib.Path(statetransform.__file__).parent
#: Modules of JAX that are private, or that JAX does not document for users.
MODULES = ("jax._src", "jax.core", "jax.interpreters", "jax.extend.linear_util", "jax.extend.source_info_util")
#: Attributes of its objects, and methods, that no documentation promises.
ATTRIBUTES = {
    "__version__", "batch_dim", "ctx", "debug_info", "func_src_info", "get_bind_params", "linear_util", "mat",
    "name_stack", "parent_trace", "primal", "source_info", "source_info_util", "str_short", "SymbolicZero", "val",
}  # fmt: skip
#: Attributes of our own objects that have such a name, and those of `Literal`, which is public.
OWN = re.compile(r"(graph|rule)\.primal|(a|v|atom|var|shown\(atom\)|view\.invars\[0\])\.val")
#: Other frameworks.
NAMES = re.compile(r"\b(flax|nnx|linen|brainstate|equinox|eqx|haiku|keras|optax|diffrax|optimistix|penzai)\b", re.I)
#: Primitives that are bound by hand.
BOUND = {"convert_element_type_p", "name_p", "remat_p"}
#: An adapter says for which release of its framework it was written.
ALLOWED = {"_frameworks": {"__version__"}}


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
            found |= {node.attr} & ATTRIBUTES if not OWN.fullmatch(names[0]) else set()
            if node.attr == "bind":
                found |= {f"{name}.bind" for name in BOUND if ast.unparse(node.value).split(".")[-1] == name}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} & ATTRIBUTES - {"__version__", "val", "primal", "mat"}  # as in `getattr(eqn, "ctx")`
        found |= {module for module in MODULES for name in names if f"{name}.".startswith(f"{module}.")}
    return found


def test_what_is_not_public_jax_is_in_one_folder_only() -> None:
    for path in ROOT.rglob("*.py"):
        folder = path.relative_to(ROOT).parts[0]
        if folder != "_jax":
            assert private_names(path) - ALLOWED.get(folder, set()) == set(), path


def test_only_adapters_name_a_framework() -> None:
    files = [file for file in ROOT.rglob("*.py") if "_frameworks" not in file.parts]
    assert len(files) > 50
    found = {str(file.relative_to(ROOT)): NAMES.findall(file.read_text()) for file in files}
    assert {name: words for name, words in found.items() if words} == {}


def test_the_core_calls_adapters_by_one_name() -> None:
    """And knows nothing of the modules behind it."""
    imports = re.compile(r"^\s*(?:from|import) .*\b(_frameworks|descriptor|handles)\b", re.M)
    folders = ("_objects", "_states", "_traces", "_uses", "_memory", "transform", "inspect")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    assert [file.name for file in files if imports.search(file.read_text())] == []
