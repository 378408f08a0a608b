"""A family of tasks in a package outside the repository, trained by the command line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.commands import espalier

PACKAGE = Path(__file__).parents[2] / "examples" / "own_environment"


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


def path_with(installed):
    paths = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def test_entry_point_and_import_path_give_the_same_tools(installed, tmp_path):
    script = (
        "import json; from espalier.config import Profile;"
        "from espalier.environments import family_of;"
        "named = [{'environment': {'name': n}} for n in ('parcel_desk', 'parcel_desk:ParcelDesk')];"
        "found = [family_of(Profile.model_validate(one)).specs for one in named];"
        "print(json.dumps([[tool.name for tool in specs] for specs in found]))"
    )
    done = espalier(script=script, cwd=tmp_path, **path_with(installed))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["weigh", "fee"]] * 2


@pytest.mark.slow
def test_the_cli_trains_the_installed_package(installed, tmp_path):
    profile = shutil.copy(PACKAGE / "profile.toml", tmp_path)
    few = (
        "synthesis.heldout_tasks=60", "synthesis.train_tasks=300", "policy.prestage.steps=6",
        "warm_start.steps=4", "training.steps=2", "threads=1",
    )  # fmt: skip
    changes = [word for one in few for word in ("--set", one)]
    run = ("run", "--profile", profile, "--out", "runs/parcels", *changes, "--json")
    done = espalier(*run, cwd=tmp_path, **path_with(installed))
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["eval"]["trained"]["n"] == 60
    assert summary["registry"]["name"] == "espalier-parcel-desk"
