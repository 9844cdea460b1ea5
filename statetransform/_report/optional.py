"""Packages that are not needed to run: imported where they are used, with one sentence where they are missing."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, extra: str, what: str) -> Any:
    """Imports a module of an optional package for `what`, or says how to install our extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{what} needs {package}. Install it with `pip install {package}`, "
            f"or with `pip install 'statetransform[{extra}]'`."
        ) from error
