"""Names of other frameworks stand in the adapters' folder, and nowhere else in the package."""

from __future__ import annotations

import pathlib
import re

import statetransform

NAMES = re.compile(r"\b(flax|nnx|linen|brainstate|equinox|eqx|haiku|keras|optax|diffrax|optimistix|penzai)\b", re.I)
PACKAGE = pathlib.Path(statetransform.__file__).parent


def test_only_adapters_name_a_framework() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if "_adapters" not in file.parts]
    assert len(files) > 50
    found = {str(file.relative_to(PACKAGE)): NAMES.findall(file.read_text()) for file in files}
    assert {name: words for name, words in found.items() if words} == {}


def test_the_core_calls_adapters_by_one_name() -> None:
    """And knows nothing of the modules behind it."""
    imports = re.compile(r"^\s*(?:from|import) .*\b(_adapters|descriptor|handles)\b", re.M)
    folders = ("_objects", "_state", "_trace", "transform", "inspect")
    files = [file for folder in folders for file in (PACKAGE / folder).rglob("*.py")]
    assert [file.name for file in files if imports.search(file.read_text())] == []
