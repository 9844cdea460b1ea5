"""The pages: all that is public has a place in the reference, and code fits the column that shows it."""

from __future__ import annotations

import pathlib
import re
from types import ModuleType

import pytest

import statetransform as st

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])
DIRECTIVE = re.compile(r"^\.\. (?:py:data|py:function|auto\w+):: ([\w.]+)", re.MULTILINE)
COLUMN = 94


@pytest.mark.parametrize("module", [st, st.transform, st.policies, st.inspect], ids=lambda module: module.__name__)
def test_every_public_name_is_in_the_reference(module: ModuleType) -> None:
    pages = [page.read_text() for page in ROOT.glob("docs/reference/*.md")]
    described = {name.rpartition(".")[2] for page in pages for name in DIRECTIVE.findall(page)}
    public = {name: getattr(module, name) for name in module.__all__ if not name.startswith("__")}
    names = {name for name, found in public.items() if not isinstance(found, ModuleType)}
    assert not names - described


def test_every_public_function_and_error_has_a_line_in_the_index() -> None:
    index = (ROOT / "docs" / "reference" / "index.md").read_text()
    linked = set(re.findall(r"<([\w.]+)>`", index)) | {"statetransform.transform.remat"}
    again = {"checkpoint_name", "checkpoint_dots", "checkpoint_dots_with_no_batch_dims", "save_from_both_policies"}
    for module in (st, st.transform, st.policies, st.inspect):
        for name in module.__all__:
            found = getattr(module, name)
            is_result = isinstance(found, type) and module is not st and not issubclass(found, Warning)
            is_other = (
                isinstance(found, ModuleType) or name.startswith("__") or (module is st.policies and name in again)
            )
            if not is_result and not is_other and name != "StateTransformError":
                assert f"{module.__name__}.{name}" in linked, name


def test_code_fits_its_column() -> None:
    code = (">>> ", "... ", "statetransform.", "TypeError:")
    for page in PAGES:
        lines = page.read_text().splitlines()
        assert [line for line in lines if line.startswith(code) and len(line) > COLUMN] == [], page
