"""The command line, as a user's shell starts it."""

import os
import subprocess
import sys


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
