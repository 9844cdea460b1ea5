"""What belongs to the user, and what to a library.

The user's own functions are followed into the globals that they look up, and the user's own classes into their
attributes. What a library has there (the standard library, site-packages, this package) is taken as given.
"""

from __future__ import annotations

import functools
import site
import sys
import sysconfig
import types
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_HEAP_TYPE = 1 << 9  # of `type.__flags__`: made by a class statement, not in C
_FOLDERS = tuple(
    {
        path.rstrip("/\\")
        for path in [
            *(sysconfig.get_paths().get(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
            *(site.getsitepackages() if hasattr(site, "getsitepackages") else ()),
            site.getusersitepackages() if hasattr(site, "getusersitepackages") else None,
        ]
        if path
    }
)


@functools.lru_cache(maxsize=4096)
def _is_library_module(name: str) -> bool:
    top = name.partition(".")[0]
    if top == _PACKAGE or (top in sys.stdlib_module_names and top != "__main__"):
        return True
    module = sys.modules.get(name) or sys.modules.get(top)
    file = getattr(module, "__file__", None)
    return file is not None and file.startswith(_FOLDERS)


def is_users_class(cls: type) -> bool:
    """Whether a class is of the user's own."""
    if not cls.__flags__ & _HEAP_TYPE:
        return False
    module = cls.__module__
    if not isinstance(module, str) or module == "builtins" or not _is_library_module(module):
        return True
    return module.partition(".")[0] == _PACKAGE and not is_ours(cls)


@functools.lru_cache(maxsize=4096)
def _is_users_file(filename: str) -> bool:
    return not filename.startswith((*_FOLDERS, "<frozen", "<__array_function__")) and not _is_ours(filename)


def _is_ours(filename: str) -> bool:
    return filename.startswith(_OWN_FOLDER)


_OWN_FOLDER = __file__.rpartition("_core")[0]


def is_users_function(fun: types.FunctionType) -> bool:
    """Whether a function is of the user's own."""
    return _is_users_file(fun.__code__.co_filename)


def is_of_library(fun: types.FunctionType) -> bool:
    """Whether a function was made by a library for itself; what `functools.wraps` has named is the user's."""
    return not isinstance(fun.__module__, str) or _is_library_module(fun.__module__)


def is_users_module(module: types.ModuleType) -> bool:
    """Whether a module is of the user's own."""
    return not _is_library_module(module.__name__)


def is_ours(cls: type) -> bool:
    """Whether a class is of this package."""
    module: Any = cls.__module__
    if not isinstance(module, str) or module.partition(".")[0] != _PACKAGE:
        return False
    # A class of an example in one of our docstrings names the module, too.
    return hasattr(sys.modules.get(module), cls.__qualname__.partition(".")[0])


def is_open_class(cls: type) -> bool:
    """Whether the attributes of instances count: the user's classes, and Python classes of installed packages.

    Instances of classes of the standard library, of JAX and of NumPy are taken as they are.
    """
    if not cls.__flags__ & _HEAP_TYPE:
        return False
    module = cls.__module__
    if not isinstance(module, str) or module == "builtins":
        return True
    top = module.partition(".")[0]
    if top == _PACKAGE:
        return not is_ours(cls)
    return top not in _CLOSED and (top == "__main__" or top not in sys.stdlib_module_names)


_CLOSED = frozenset({"jax", "jaxlib", "numpy", "scipy", "ml_dtypes", _PACKAGE})
