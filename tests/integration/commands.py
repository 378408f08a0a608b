"""The command line, as a user's shell starts it or in this process."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from espalier.cli import command_line

SCRIPT = "from espalier.cli import main; main()"


def settings(*changes):
    """`--set` arguments for changes written as section.key=value."""
    return [part for change in changes for part in ("--set", change)]


def started(*arguments, cwd=None, script=SCRIPT, **variables):
    """A process of the command line; or of another script."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=cwd,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def espalier(*arguments, cwd=None, script=SCRIPT, **variables):
    """What a command comes to: `returncode`, `stdout`, `stderr`."""
    process = started(*arguments, cwd=cwd, script=script, **variables)
    printed, said = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, printed, said)


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
