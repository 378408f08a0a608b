"""The command line beside a stand-in for Kubeflow Pipelines."""

import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from typer.testing import CliRunner

from espalier.cli import command_line
from espalier.cluster import kubeflow as module
from espalier.config import KubernetesConfig
from espalier.orchestration import pipelines
from tests.fakes.kubeflow_stand_in import TOKEN, kubeflow_stand_in


@contextmanager
def kubeflow_at_hand(monkeypatch):
    """A stand-in that the environment names, asked again without a pause.

    Equal pipelines are compiled once, as that takes three seconds of which KFP looks at its own
    stack for two.
    """
    monkeypatch.setattr(pipelines, "compile_pipeline", _compile_once)
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.delenv(module.TOKEN_FILE_VARIABLE, raising=False)
    with kubeflow_stand_in() as stand_in:
        monkeypatch.setenv(module.ENDPOINT_VARIABLE, stand_in.endpoint)
        monkeypatch.setenv(module.TOKEN_VARIABLE, TOKEN)
        yield stand_in


_COMPILE = pipelines.compile_pipeline


def _compile_once(out, defaults, settings, image):
    out.write_text(_compiled(tuple(defaults.items()), settings.model_dump_json(), image))


@cache
def _compiled(defaults, settings, image):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "pipeline.yaml"
        _COMPILE(out, dict(defaults), KubernetesConfig.model_validate_json(settings), image)
        return out.read_text()


def espalier(*arguments):
    """What a command came to."""
    return CliRunner().invoke(command_line(), list(arguments))


def done(*arguments):
    """What a command printed, as it has to succeed."""
    result = espalier(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(*arguments):
    """What a command said, as it has to refuse."""
    result = espalier(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert TOKEN not in result.stderr
    return result.stderr
