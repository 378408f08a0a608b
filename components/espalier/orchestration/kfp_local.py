"""Runs the Kubeflow pipeline on this machine: kfp.local runs each step in its own process."""

from __future__ import annotations

import io
import json
import shutil
import sys
import warnings
from collections.abc import Collection
from contextlib import redirect_stdout
from pathlib import Path

from espalier.chain import CHAIN
from espalier.config import Profile
from espalier.orchestration.pipelines import load_pipeline
from espalier.orchestration.run_directory import Timings
from espalier.records import EspalierError, open_artifact, replace_directory
from espalier.steps.stopping import at_once, terminate_children
from espalier.usage import Usage

_ERROR = "error: "


class StepLog(io.TextIOBase):
    """Stream for the output of kfp.local that keeps the error message of a failing step."""

    def __init__(self, path: Path, stages: Collection[str]) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._stages = frozenset(stages)
        self._partial_line = ""
        self._error_lines: list[str] = []
        self._is_in_error = False

    @property
    def error(self) -> str:
        """The error message of the step that failed; empty where none did."""
        return "\n".join(self._error_lines)

    def write(self, text: str) -> int:
        """Write the text to the file, and complete lines of stages also to stderr."""
        self._file.write(text)
        *lines, self._partial_line = (self._partial_line + text).split("\n")
        for line in lines:
            self._read(line.strip())
        return len(text)

    def flush(self) -> None:
        """Flush the file."""
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def _read(self, line: str) -> None:
        if line.startswith(_ERROR):
            self._is_in_error, self._error_lines = True, [line.removeprefix(_ERROR)]
        elif not line:
            self._is_in_error = False
        elif self._is_in_error:
            self._error_lines.append(line)
        elif line.partition(" ")[0] in self._stages:
            sys.stderr.write(line + "\n")


LOG_NAME = "kfp.log"
KFP_FOLDER = ".kfp"
"""Working folder inside the run's folder, so that artifacts are moved by a rename."""


def run_pipeline(profile: Profile, run_dir: Path) -> None:
    """Run the pipeline and move its artifacts into the same folders as the in-process runner's.

    All output of KFP and the steps goes to RUN/kfp.log, and lines of stages to stderr, too.

    Raises:
        EspalierError: a step failed; the message is the step's.
    """
    from kfp import local

    root = run_dir / KFP_FOLDER
    shutil.rmtree(root, ignore_errors=True)
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(root),
        workspace_root=str(root / "workspace"),
        raise_on_error=True,
        enable_caching=False,
    )
    log = StepLog(run_dir / LOG_NAME, [stage.name for stage in CHAIN])
    # a signal may reach only this process, and kfp.local would wait for the step's process
    with log, redirect_stdout(log), warnings.catch_warnings(), at_once(terminate_children):
        warnings.filterwarnings("ignore", message="You may be attemping to run a task")
        try:
            load_pipeline()(profile=profile.model_dump_json(), seed=profile.seed)
        except RuntimeError as error:
            reason = log.error or f"kfp.local: {error}"
            raise EspalierError(f"{reason}\nThe whole log is {run_dir / LOG_NAME}") from error
    _collect(root, run_dir)


def _collect(root: Path, run_dir: Path) -> None:
    timings = Timings(run_dir)
    for stage in CHAIN:
        # a stage's folder is below <pipeline root>/<pipeline>-<time>/, named with dashes
        found = sorted(root.glob(f"*/{stage.name.replace('_', '-')}"))
        if len(found) != 1:
            raise EspalierError(
                f"{root}: kfp.local left {len(found)} folders for {stage.name}, not one"
            )
        task_dir = found[0]
        open_artifact(task_dir / stage.output)
        replace_directory(task_dir / stage.output, run_dir / stage.output)

        # the step's usage is metadata of its output
        noted = json.loads((task_dir / "executor_output.json").read_bytes())
        figures = noted["artifacts"][stage.output]["artifacts"][0]["metadata"]
        usage = Usage(seconds=figures["seconds"], peak_rss_mb=figures["peak_rss_mb"])
        timings.record(stage.name, usage)
    shutil.rmtree(root, ignore_errors=True)
