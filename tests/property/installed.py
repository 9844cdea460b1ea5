"""A package as somebody else would have installed it: its file is in the folder of installed packages."""

from __future__ import annotations

import linecache
import pathlib
import sys
import sysconfig
import textwrap
import types

SOURCE = """
    from statetransform import State

    SCALE = 3
    TABLE = {"a": 1}

    def number(value):
        return float(value) if isinstance(value, int | float) else 1.0

    class Module:
        factor = 2

        def __init__(self, fill, rng):
            fill(self, rng)

        @property
        def doubled(self):
            return self.order * self.factor

        def total(self, x):
            return x * number(self.order) * self.factor + SCALE + TABLE["a"]

        def __call__(self, x):
            return self.total(x) + (self.w.value if isinstance(self.w, State) else 0)

    def order_of(part): return number(part.order)
    short = lambda part: number(part.order) * SCALE
    named = lambda part, name: getattr(part, f"{name}{''}", None)

    def shown(part):
        return float(len(f"{part.order} {part.child.order if part.child is not None else ''}"))
"""
NAME = "installed_by_somebody"


def install() -> types.ModuleType:
    """The package; from now on it can be imported."""
    source = textwrap.dedent(SOURCE)
    file = str(pathlib.Path(sysconfig.get_path("purelib")) / NAME / "__init__.py")
    module = types.ModuleType(NAME)
    module.__file__ = file
    sys.modules[NAME] = module
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    exec(compile(source, file, "exec"), vars(module))
    return module
