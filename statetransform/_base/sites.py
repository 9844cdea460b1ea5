"""Where in the user's code something happens."""

from __future__ import annotations

import os.path
import sys
import types
import warnings

import jax

from .library import is_framework_file, is_library_file, is_own_file

_JAX = os.path.join(os.path.dirname(os.path.abspath(str(jax.__file__))), "")


def user_frame() -> types.FrameType:
    """The innermost Python frame that belongs to no library and to no framework with an adapter."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not is_library_file(file) and not is_framework_file(file):
            break
        frame = frame.f_back
    return frame


def user_site() -> tuple[str, int]:
    """File and line of that frame."""
    frame = user_frame()
    return frame.f_code.co_filename, frame.f_lineno


def warn(message: str, category: type[Warning]) -> None:
    """Warns at the user's line, once for each line unless a filter says otherwise."""
    frame = user_frame()
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__", "<unknown>"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def is_shown() -> bool:
    """Whether the user has called `jax.make_jaxpr` around this, which runs nothing."""
    frame: types.FrameType | None = sys._getframe(1)
    is_in_one = False
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(_JAX):
            is_in_one = is_in_one or name.startswith("make_jaxpr")
        elif is_in_one and not is_own_file(file):
            return True
        else:
            is_in_one = False
        frame = frame.f_back
    return False
