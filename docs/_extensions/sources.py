"""Links to the source of public objects, which say where they are imported from and not where they are written."""

from __future__ import annotations

import inspect
import sys
from typing import Any


def module_of(found: Any) -> str | None:
    """The module in which a class or a function is written."""
    if inspect.isclass(found):
        functions = [member for member in vars(found).values() if inspect.isfunction(member)]
        named = {function.__globals__["__name__"] for function in functions if "__name__" in function.__globals__}
        written = [sys.modules[name] for name in named if name.startswith("statetransform")]
        modules = written + [module for name, module in sys.modules.items() if name.startswith("statetransform.")]
        holds = [module for module in modules if f"class {found.__name__}" in _text(module)]
        return holds[0].__name__ if holds else None
    found = inspect.unwrap(found)
    return getattr(found, "__globals__", {}).get("__name__")


def _text(module: Any) -> str:
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return ""


def follow(app: Any, module: str, attribute: str) -> str | None:
    """What viewcode asks: where `attribute` of a public module is written."""
    found = sys.modules.get(module)
    for name in attribute.split("."):
        if inspect.isclass(found):
            return module_of(found)
        found = getattr(found, name, None)
    return None if found is None else module_of(found)


def only_ours(app: Any, module: str) -> tuple[str, dict[str, Any]] | None:
    """No page of source for what is JAX's own."""
    return None if module.split(".")[0] == "statetransform" else ("", {})


def setup(app: Any) -> dict[str, bool]:
    app.connect("viewcode-follow-imported", follow)
    app.connect("viewcode-find-source", only_ours)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
