"""Runs a stage inside a Kubeflow step, with profile, tracker, determinism, outputs and errors.

Kubeflow's launcher uploads the outputs of a step only if the step succeeds, and would lose the
report where validation refuses rows. The step of `validate` therefore succeeds also then, shows the
report, and passes a verdict on; the next step, `require_valid`, ends the run with the verdict's
faults, so that no later stage starts. Steps without a verdict, as in a plain Job, and the
in-process runner fail at once.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from espalier.chain import STAGES
from espalier.config import Profile
from espalier.determinism import prepare_environment, prepare_torch
from espalier.monitoring import exported_tracker
from espalier.records import CompositeTracker, Patience, RefusedRowsError, patient, patiently
from espalier.records.patience import STEP_PATIENCE_S
from espalier.registry.tracking import mark_killed, stage_tracking
from espalier.steps.console import ConsoleTracker
from espalier.steps.given_model import bring_named_model, with_starting_policy
from espalier.steps.kept import run_or_fetch
from espalier.steps.profiles import parsed_profile, stage_settings
from espalier.steps.refusing import FailureMessage
from espalier.steps.stopping import before_forced_end, stopping_on_signals
from espalier.steps.train_job_status import reporting_to_train_job
from espalier.storage import restore_names
from espalier.usage import UsageMeter

_SHOWN_FAULTS, _SHOWN_CHARACTERS = 20, 1000
"""Most faults in a verdict, and of each: a parameter is in Kubeflow's database and in pod specs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownOutputs:
    """Outputs of a step besides its artifact; None where the step has no such output."""

    page: str | None = None
    """Path of an HTML file."""
    summary: str | None = None
    """Path of a Markdown file."""
    verdict: str | None = None
    """Path of a JSON file for the faults of refused rows; with None they fail the step."""


def run_stage(
    name: str,
    profile_json: str,
    inputs: Mapping[str, str],
    output: str,
    metadata: dict[str, float],
    shown: ShownOutputs | None = None,
) -> None:
    """Run one stage on the paths that Kubeflow's launcher or kfp.local provides.

    Requests to an unreachable MLflow server are repeated for ten minutes, with a line for each try.

    Args:
        name: name of the stage and of its tracked run.
        profile_json: result of `resolve_profile`.
        inputs: artifact folder -> its path; Kubeflow's launcher may have filled it with the objects
            of an artifact that espalier published (`espalier.storage.layout`).
        output: path of the artifact folder that the stage publishes.
        metadata: of the output; takes `seconds`, `peak_rss_mb` and the figures of the result.
        shown: the step's other outputs.

    Raises:
        SystemExit: the stage failed; the step's log ends with the message, without a traceback. The
            code is 75 if MLflow stayed unreachable.
    """
    shown = shown or ShownOutputs()
    prepare_environment()
    _quiet_libraries()
    meter = UsageMeter()
    with FailureMessage(name):
        profile = parsed_profile(profile_json)
        published, faults = Path(output), ()
        try:
            _run(name, profile, inputs, published)
        except RefusedRowsError as refused:
            if shown.verdict is None:
                raise
            published, faults = refused.report, refused.faults
            _say(name, f"refused rows, for {len(faults)} reasons; the next step ends the run")
        usage = meter.read()
        metadata |= {
            "seconds": round(usage.seconds, 3),
            "peak_rss_mb": round(usage.peak_rss_mb, 1),
        }
        _show(name, profile, published, metadata, shown)
        if shown.verdict is not None:
            _write_verdict(Path(shown.verdict), faults)


def require_valid(verdict: str, report_uri: str) -> None:
    """End the run if validation refused rows; the step after `validate` in Kubeflow's pipeline.

    Args:
        verdict: verdict of the step of `validate`.
        report_uri: URI of its report.

    Raises:
        SystemExit: rows were refused; the message has each failed expectation with its column and
            finding, and the URI.
    """
    from espalier.stages.validate import stop_message

    with FailureMessage("validate"):
        faults = json.loads(verdict)
        if faults:
            message = stop_message(faults, report_uri)
            raise RefusedRowsError(message, faults=faults, report=Path(report_uri))


def _run(name: str, profile: Profile, inputs: Mapping[str, str], output: Path) -> None:
    console = ConsoleTracker(name)
    with (
        stopping_on_signals(lambda line: _say(name, line), "The step can be run again."),
        patient(Patience(total_s=STEP_PATIENCE_S, say=console.note)),
    ):
        prepare_torch(profile.threads)
        with (
            stage_tracking(name, profile) as tracked,
            reporting_to_train_job(os.environ, console.note) as reported,
            before_forced_end(lambda: mark_killed(tracked)),
            exported_tracker(name, os.environ, console.note) as exported,
        ):
            tracked.params(stage_settings(profile, name))
            if name == "prepare_policy":
                started = profile
                profile = patiently(lambda: with_starting_policy(started, output.parent))
                bring_named_model(profile, os.environ, console.note)
            paths = {name: restore_names(Path(path)) for name, path in inputs.items()}
            tracker = CompositeTracker(console, tracked, exported, *reported)
            run_or_fetch(STAGES[name], profile, paths, output, tracker, os.environ)


def _quiet_libraries() -> None:
    """Silence INFO lines of libraries, which KFP's executor turns on in the root logger.

    Call it before importing them: Great Expectations logs two hundred lines during its import.
    """
    logging.getLogger().setLevel(logging.WARNING)


def _show(
    name: str,
    profile: Profile,
    published: Path,
    metadata: dict[str, float],
    shown: ShownOutputs,
) -> None:
    if shown.page is None and shown.summary is None:
        return
    from espalier.reporting import step_views  # it imports matplotlib

    run = step_views.opened_artifact(published, profile.model_dump(mode="json"))
    metadata |= step_views.step_figures(name, run)
    if shown.page is not None:
        Path(shown.page).write_text(step_views.step_page(name, run), encoding="utf-8")
    if shown.summary is not None:
        Path(shown.summary).write_text(step_views.step_summary(run), encoding="utf-8")


def _write_verdict(path: Path, faults: Sequence[str]) -> None:
    shown_faults = [
        fault if len(fault) <= _SHOWN_CHARACTERS else f"{fault[:_SHOWN_CHARACTERS]}..."
        for fault in faults[:_SHOWN_FAULTS]
    ]
    if len(faults) > len(shown_faults):
        shown_faults.append(f"and {len(faults) - len(shown_faults)} more; see the report")
    path.write_text(json.dumps(shown_faults), encoding="utf-8")


def _say(stage: str, line: str) -> None:
    sys.stderr.write(f"{stage}: {line}\n")
