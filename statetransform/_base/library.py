"""What is a library, and what is the user's code.

Your code is everything but JAX, NumPy, SciPy, Python itself and this package. A file decides, wherever it lies: a
package of the user's may be installed, or have the name of a module of Python, and JAX may be found by `PYTHONPATH`.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib.util
import os
import sys
import types
from typing import Any

#: Classes of the standard library whose instances hold what the user put there.
HOLDERS = (
    types.SimpleNamespace, argparse.Namespace, collections.UserDict, collections.UserList, collections.ChainMap
)  # fmt: skip
_PACKAGE = __name__.partition(".")[0]
_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "ml_dtypes")
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = tuple(os.path.join(_STANDARD, name, "") for name in ("site-packages", "dist-packages"))
_frameworks: list[str] = []  # those with an adapter
#: Of `type.__flags__`: made by a class statement, and not in C.
HEAP_TYPE = 1 << 9


@functools.cache
def _folders() -> tuple[str, ...]:
    """The folders of the libraries, those of this environment's `lib64` and the like included."""
    specs = filter(None, map(importlib.util.find_spec, _LIBRARIES))
    found = [os.path.join(place, "") for spec in specs for place in spec.submodule_search_locations or ()]
    return tuple(dict.fromkeys([*found, *(os.path.join(os.path.realpath(place), "") for place in found), _OWN_FOLDER]))


@functools.lru_cache(maxsize=8192)
def is_library_file(filename: str) -> bool:
    """Whether a file is of JAX, NumPy, SciPy, Python itself or this package."""
    if filename.startswith(_STANDARD):
        return not filename.startswith(_INSTALLED) or filename.startswith(_folders())
    # NumPy names the file of its dispatchers so.
    return filename.startswith((*_folders(), "<frozen", "<__array_function__"))


def is_own_file(filename: str) -> bool:
    """Whether a file is of this package."""
    return filename.startswith(_OWN_FOLDER)


def adapt(package: str) -> None:
    """Says that there is an adapter to a framework, which follows its settings: its own functions are not followed."""
    _frameworks.append(package)


def is_framework_file(filename: str) -> bool:
    """Whether a file is of a framework with an adapter."""
    for package in _frameworks:
        file = getattr(sys.modules.get(package), "__file__", None)
        if file and filename.startswith(_folder(file)):
            return True
    return False


@functools.cache
def _folder(file: str) -> str:
    return os.path.join(os.path.dirname(file), "")


def is_library_module(name: str) -> bool:
    """Whether a module is of a library."""
    while name and name != "__main__":
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            return is_library_file(file)
        if getattr(getattr(module, "__spec__", None), "origin", None) in ("built-in", "frozen"):
            return True
        name = name.rpartition(".")[0]  # the modules within an extension have no file of their own
    return False


def is_users_class(cls: type) -> bool:
    """Whether a class is of the user's own."""
    if not cls.__flags__ & HEAP_TYPE:  # types of C are none of the user's
        return False
    module = getattr(cls, "__module__", None)  # code that `exec` runs may make classes without one
    if not isinstance(module, str) or module == "builtins" or not is_library_module(module):
        return True
    return module.partition(".")[0] == _PACKAGE and not is_ours(cls)


def is_users_function(fun: types.FunctionType) -> bool:
    """Whether a function is of the user's own."""
    file = fun.__code__.co_filename
    return not is_library_file(file) and not is_framework_file(file)


def is_framework_class(cls: type) -> bool:
    """Whether a class is of a framework with an adapter."""
    return is_framework_file(getattr(sys.modules.get(getattr(cls, "__module__", "")), "__file__", None) or "")


def is_users_module(module: types.ModuleType) -> bool:
    """Whether a module is of the user's own."""
    return not is_library_module(module.__name__)


def is_ours(cls: type) -> bool:
    """Whether a class is of this package."""
    module: Any = getattr(cls, "__module__", None)
    if not isinstance(module, str) or module.partition(".")[0] != _PACKAGE:
        return False
    # A class of an example in one of our docstrings names the module, too.
    return hasattr(sys.modules.get(module), cls.__qualname__.partition(".")[0])
