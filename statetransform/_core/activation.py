"""Adapters to other frameworks, each active only once its framework has been imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

#: Frameworks whose adapters are not active yet, with the modules of these.
pending: dict[str, str] = {}


def activate() -> None:
    """Activates the adapters whose frameworks have been imported since; a look-up of a name each."""
    for name in [name for name in pending if name in sys.modules]:
        spec = getattr(sys.modules[name], "__spec__", None)
        if getattr(spec, "_initializing", False):  # it is being imported, by another thread perhaps
            continue
        adapter = pending.pop(name, None)
        if adapter is not None:
            install: Callable[[], None] = importlib.import_module(adapter).install
            install()
