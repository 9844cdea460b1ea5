"""`checkpoint`, also called `remat`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from .._core.lift import Staged
from .._core.wrapper import decorate


def checkpoint(fun=None, *, prevent_cse=True, policy=None, static_argnums=(), static_argnames=(), concrete=False, states=None, methods=None):
    around = functools.partial(jax.checkpoint, prevent_cse=prevent_cse, policy=policy)
    return decorate(Staged, fun, around=around, static_argnums=static_argnums, static_argnames=static_argnames, states=states)

remat = checkpoint
