"""Pages about a framework are run where that is installed."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

NEEDS = {
    "nnx.md": "flax", "linen.md": "flax", "brainstate.md": "brainstate", "equinox.md": "equinox",
    "diffrax.md": "diffrax", "jaxley.md": "jaxley", "keras.md": "keras", "mjx.md": "mujoco.mjx",
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        package = NEEDS.get(item.path.name) if item.path.parent.name == "coming-from" else None
        if package is not None and not _is_there(package):
            item.add_marker(pytest.mark.skip(reason=f"{package} is not installed"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.path.name == "mjx.md" and _is_there("mujoco.mjx"):
        importlib.import_module("mujoco.mjx")  # some releases print when they are imported


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package around it
        return False
