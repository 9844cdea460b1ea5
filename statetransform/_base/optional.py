"""Packages that are not needed to run: imported where they are used, with one sentence where they are missing."""

from __future__ import annotations

import importlib
import warnings
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


def progress_bar() -> Any:
    """The class of `tqdm` that fits the place: a widget in a notebook, text elsewhere."""
    with warnings.catch_warnings():
        # In a notebook without widgets it says so, and falls back to text, which is what is wanted.
        warnings.simplefilter("ignore")
        return require("tqdm.auto", "progress", "progress=").tqdm
