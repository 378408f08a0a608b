import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from espalier import extras
from espalier.cli import command_line
from espalier.extras import missing_extra, requirements

ROOT = Path(__file__).parents[2]
ASKED = [
    "kfp>=2.17",
    'torch>=2.8; extra == "train"',
    'great-expectations>=1.24; extra == "train"',
    'ray[default]>=2.50; extra == "ray"',
    'triton>=3; sys_platform == "linux" and extra == "train"',
    'ruff>=0.12; extra == "dev"',
]


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(extras.metadata, "requires", lambda name: ASKED)


def test_requirements_are_told_apart_by_their_extra(asked):
    assert [tuple(found) for found in requirements()] == [
        ("kfp", None),
        ("torch", "train"),
        ("great-expectations", "train"),
        ("ray", "ray"),
        ("triton", "train"),
    ]


def test_a_folder_that_was_never_installed_asks_for_nothing(monkeypatch):
    monkeypatch.setattr(extras, "DISTRIBUTION", "espalier-that-is-not-there")
    assert requirements() == []


def test_a_missing_package_is_answered_with_its_extra(asked):
    message = missing_extra(ModuleNotFoundError(name="great_expectations.core"))
    assert message is not None
    assert message.endswith("not installed: pip install 'espalier-agents[train]'")
    assert "great-expectations" in message
    for name in ("kfp", "ruff", "json", None):
        assert missing_extra(ModuleNotFoundError(name=name)) is None


def test_a_command_without_its_extra_says_one_line(asked, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("espalier.orchestration.finished_run.evaluate_policy", _imports_torch)
    done = CliRunner().invoke(command_line(), ["evaluate", str(tmp_path), "--run", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        "error: this needs the package torch, which is not installed: "
        "pip install 'espalier-agents[train]'\n"
    )


def _imports_torch(*_):
    import torch

    return torch.__version__


CLIENT = """
import sys
from espalier.cli import command_line
command_line()(["compile", "--profile", "smoke", "--out", sys.argv[1]], standalone_mode=False)
import espalier.cluster.kubeflow, espalier.cluster.schedules
import espalier.orchestration.doctor, espalier.orchestration.finished_run
import espalier.orchestration.pipelines, espalier.reporting
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def _beside():
    """What the distributions beside the core need."""
    for path in (ROOT / "components").glob("*/pyproject.toml"):
        yield from tomllib.loads(path.read_text())["project"]["dependencies"]


@pytest.mark.slow
def test_the_client_loads_nothing_that_extras_bring(tmp_path):
    """Commands, compiling, submitting and reporting do without torch and what goes with it."""
    command = [sys.executable, "-c", CLIENT, str(tmp_path / "pipeline.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    brought = {
        extras.module_of(found.name)
        for line in [*optional["train"], *optional["ray"], *optional["vllm"], *_beside()]
        if (found := extras.Requirement(extras._REQUIREMENT.match(line)[1], None))
    }
    assert {"torch", "transformers", "mlflow", "websockets"} <= brought
    assert {"kfp", "pandas"} <= loaded
    assert not loaded & brought
