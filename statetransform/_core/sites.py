"""Where in the user's code something happens."""

from __future__ import annotations

import copy
import os.path
import sys
import types

import jax

# Lines of these folders are never where the user wrote or created a state.
_NOT_USERS = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(os.path.abspath(jax.__file__)) + os.sep,
    copy.__file__,
    "<frozen",
)


def is_not_users(module: types.ModuleType) -> None:
    """Says that a package of a framework is not where the user wrote or created a state."""
    global _NOT_USERS
    assert module.__file__ is not None
    _NOT_USERS = (*_NOT_USERS, os.path.dirname(os.path.abspath(module.__file__)) + os.sep)


def user_frame() -> types.FrameType:
    """The innermost Python frame that belongs to none of this package, JAX, and the frameworks with an adapter."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_USERS):
        frame = frame.f_back
    return frame


def user_site() -> tuple[str, int]:
    """File and line of that frame."""
    frame = user_frame()
    return frame.f_code.co_filename, frame.f_lineno


def is_shown() -> bool:
    """Whether the user has called `jax.make_jaxpr` around this, which runs nothing."""
    ours, jaxs, *_ = _NOT_USERS
    frame: types.FrameType | None = sys._getframe(1)
    is_in_one = False
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(jaxs):
            is_in_one = is_in_one or name.startswith("make_jaxpr")
        elif is_in_one and not file.startswith(ours):
            return True
        else:
            is_in_one = False
        frame = frame.f_back
    return False
