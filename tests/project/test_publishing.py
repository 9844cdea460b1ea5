"""What a package index, an archive and a reader of the repository are told about the package."""

from __future__ import annotations

import json
import pathlib
import re
import tomllib

import pytest

import statetransform as st

ROOT = pathlib.Path(__file__).parents[2]


def test_every_file_that_names_the_version_names_this_one() -> None:
    assert json.loads((ROOT / "codemeta.json").read_text())["version"] == st.__version__
    found = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == st.__version__


def test_the_readme_cites_this_version() -> None:
    assert f"version = {{{st.__version__}}}" in (ROOT / "README.md").read_text()


def test_codemeta_names_the_dependencies_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert json.loads((ROOT / "codemeta.json").read_text())["softwareRequirements"] == project["dependencies"]


@pytest.mark.skipif(not (ROOT / ".zenodo.json").exists(), reason="the source distribution has no recipe")
def test_the_conda_recipe_and_zenodo_say_what_the_package_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / "publish" / "conda-forge" / "recipe.yaml").read_text()
    assert f'version: "{st.__version__}"' in recipe
    for dependency in project["dependencies"]:
        assert f"- {dependency.replace('>=', ' >=')}\n" in recipe
    zenodo = json.loads((ROOT / ".zenodo.json").read_text())
    assert zenodo["license"] == project["license"]


# The source distribution has no workflows.
@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_workflows_pin_each_action_to_a_commit_and_grant_nothing_by_default(workflow: pathlib.Path) -> None:
    text = workflow.read_text()
    uses = re.findall(r"uses: (\S+)(.*)", text)
    assert uses
    for action, comment in uses:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v[\d.]+", comment), comment
    assert "\npermissions: {}\n" in text
