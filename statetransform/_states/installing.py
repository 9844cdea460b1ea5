"""Installs the adapter to a framework when something of the framework is met: a module, a class or a function.

A program that meets nothing of a framework does not change it, and does not depend on its version. JAX itself is in
every program, so the adapter to `jax.Ref` is installed with this package.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import types
from typing import Any

from .._base.errors import StateTransformError

#: Adapters that are not installed yet: the framework, as the names of its classes begin, and the adapter's module.
waiting: dict[str, str] = {}
_lock = threading.RLock()


def register_lazily(framework: str, adapter: str) -> None:
    """Says which module has the adapter to a framework: its function `install` is called when that is met."""
    waiting[framework] = adapter


def install_for(obj: Any, raises: bool = False) -> None:
    """Installs the adapter to the framework of a module, class or function.

    Nothing is said of an adapter that cannot be installed, since the program may use no cell, unless it `raises`.
    """
    with contextlib.nullcontext() if raises else contextlib.suppress(StateTransformError):
        for framework in [*waiting]:
            is_imported = framework.partition(".")[0] in sys.modules
            if is_imported and any(f"{name}.".startswith(f"{framework}.") for name in _names(obj)):
                with _lock:
                    if framework in waiting:
                        importlib.import_module(waiting[framework]).install()
                        del waiting[framework]


def _names(obj: Any) -> list[str]:
    """The full names by which a module, class or function shows its framework; those of all bases of a class."""
    if isinstance(obj, types.ModuleType):
        return [obj.__name__]
    if isinstance(obj, type):
        return [f"{getattr(base, '__module__', None)}.{base.__qualname__}" for base in obj.__mro__]
    return [f"{getattr(obj, '__module__', None)}"]
