"""A family of tasks in a package outside the repository, trained by the command line."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from espalier.extras import DISTRIBUTION

PACKAGE = Path(__file__).parents[2] / "examples" / "own_environment"
SCRIPT = "from espalier.cli import main; main()"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package, copied out of the repository and installed beside nothing else."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(PACKAGE, elsewhere / "source")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
    target = elsewhere / "site"
    done = subprocess.run(
        [*pip, "--no-index", "--target", target, elsewhere / "source"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target


def python(*arguments, path, cwd):
    variables = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    paths = [str(path), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-c", *arguments],
        cwd=cwd,
        env=variables | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_whole_package_is_under_100_lines(installed):
    lines = [line for module in installed.glob("*.py") for line in module.read_text().splitlines()]
    assert 0 < len(lines) < 100


@pytest.mark.parametrize("name", ["parcel_desk", "parcel_desk:ParcelDesk"])
def test_entry_point_and_import_path_give_derived_schemas(installed, tmp_path, name):
    script = (
        "import json; from espalier.config import Profile;"
        "from espalier.environments import family_of;"
        f"family = family_of(Profile.model_validate({{'environment': {{'name': {name!r}}}}}));"
        "print(json.dumps({tool.name: tool.parameters for tool in family.specs}))"
    )
    done = python(script, path=installed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "weigh": {
            "type": "object",
            "properties": {"item": {"type": "string"}, "count": {"minimum": 1, "type": "integer"}},
            "required": ["item", "count"],
            "additionalProperties": False,
        },
        "fee": {
            "type": "object",
            "properties": {
                "kilograms": {"minimum": 1, "type": "integer"},
                "carrier": {"enum": ["rail", "road", "sea", "air"], "type": "string"},
            },
            "required": ["kilograms", "carrier"],
            "additionalProperties": False,
        },
    }


def test_the_package_depends_on_this_distribution_alone():
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["dependencies"] == [DISTRIBUTION]


@pytest.mark.slow
def test_rl_by_the_cli_improves_the_installed_package(installed, tmp_path):
    profile = shutil.copy(PACKAGE / "profile.toml", tmp_path)
    run = ("run", "--profile", profile, "--out", "runs/parcels", "--set", "threads=1", "--json")
    done = python(SCRIPT, *run, path=installed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["eval"]["trained"]["n"] == 300
    assert summary["eval"]["gain"]["ci95"][0] > 0
    assert summary["registry"]["name"] == "espalier-parcel-desk"
