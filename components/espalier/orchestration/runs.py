"""One run from profile to report, on either local runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espalier.config import Profile
from espalier.determinism import prepare_torch
from espalier.orchestration.in_process import ChainRun
from espalier.orchestration.run_directory import PROFILE_NAME, locked_run, write_atomically
from espalier.orchestration.run_state import RunState
from espalier.orchestration.tracking import run_description, stage_listeners, tracked_run
from espalier.records import json_digest
from espalier.registry.tracking import ParentRun
from espalier.steps.given_model import check_given_model
from espalier.steps.profiles import changed_settings
from espalier.steps.starting_policy import with_starting_policy

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run folder that this process holds, and its parent run in MLflow."""

    state: RunState
    parent: ParentRun


def run_in_process(profile: Profile, run_dir: Path, say: Say) -> dict[str, Any]:
    """Run the chain here; the same call resumes a killed run.

    Args:
        profile: what to run.
        run_dir: where artifacts, summary and report go.
        say: takes one line for each stage that is kept, and warnings.

    Returns:
        The summary, as in RUN/summary.json.

    Raises:
        EspalierError: whatever the user has to mend; nothing is half-published.
    """
    check_given_model(profile, say)
    with _opened(profile, run_dir) as run:
        prepare_torch(profile.threads)
        chain_run = ChainRun(
            profile=with_starting_policy(profile, run_dir),
            run_dir=run_dir,
            state=run.state,
            stage_tracker=stage_listeners(run.parent, profile),
            say=say,
        )
        chain_run.execute()
        return _finished(profile, run_dir, run.parent)


def run_kfp_local(profile: Profile, run_dir: Path, say: Say) -> dict[str, Any]:
    """Run the Kubeflow pipeline with kfp.local, one process a step, into the same folders.

    It starts over every time: artifacts of a former run are replaced when the new ones are whole.

    Raises:
        EspalierError: a step failed (its last line says why), or the folder cannot be written.
    """
    from espalier.orchestration.kfp_local import run_pipeline

    check_given_model(profile, say)
    with _opened(profile, run_dir) as run:
        run_pipeline(profile, run_dir)
        return _finished(profile, run_dir, run.parent)


@contextmanager
def _opened(profile: Profile, run_dir: Path) -> Iterator[OpenRun]:
    with locked_run(run_dir):
        state = RunState.load(run_dir)
        profile_text = profile.model_dump_json(indent=2)
        state.follow_profile(json_digest(profile_text))
        write_atomically(run_dir / PROFILE_NAME, profile_text + "\n")
        with tracked_run(profile, run_dir, state) as parent:
            parent.tracker.params(changed_settings(profile))
            parent.tracker.artifact(run_dir / PROFILE_NAME)
            yield OpenRun(state, parent)


def _finished(profile: Profile, run_dir: Path, parent: ParentRun) -> dict[str, Any]:
    from espalier.reporting import write_report, write_summary

    summary = write_summary(run_dir, None)
    report = write_report(run_dir)
    parent.tracker.metrics(dict(_headline_figures(summary)))
    parent.tracker.describe(run_description(profile, run_dir, summary))
    parent.tracker.artifact(run_dir / "summary.json")
    parent.tracker.artifact(report)
    return summary


def _headline_figures(summary: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """EM of each policy and the gain, under the names that MLflow compares runs by."""
    for name, figures in summary["eval"].items():
        if figures is not None:
            yield f"eval.{name}.em", figures["em"]
