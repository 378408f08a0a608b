"""The command line, as a user's shell starts it or in this process."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from espalier.cli import command_line


def settings(*changes):
    """`--set` arguments for changes written as section.key=value."""
    return [part for change in changes for part in ("--set", change)]


def espalier(*arguments, cwd):
    script = "from espalier.cli import main; main()"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def espalier_here(*arguments, cwd):
    """What a command comes to in this process, which has loaded torch and MLflow already.

    An exception that is no refusal is the test's: a shell would show its traceback.
    """
    with _torch_left_as_it_was(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
            patch.delenv(name)
        return CliRunner().invoke(command_line(), list(arguments), catch_exceptions=False)


@contextmanager
def _torch_left_as_it_was():
    """Commands set torch's threads and determinism for the process, which is theirs elsewhere."""
    import torch

    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    filling = torch.utils.deterministic.fill_uninitialized_memory
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)
        torch.utils.deterministic.fill_uninitialized_memory = filling
