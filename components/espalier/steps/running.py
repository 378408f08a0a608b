"""A stage inside a Kubeflow step: profile, tracker, determinism and error text around it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from espalier.chain import STAGES
from espalier.determinism import prepare_environment, prepare_torch
from espalier.records import EspalierError
from espalier.registry.tracking import mark_killed, stage_tracking
from espalier.steps.console import CompositeTracker, ConsoleTracker
from espalier.steps.given_model import with_starting_policy
from espalier.steps.kept import run_or_fetch
from espalier.steps.profiles import parsed_profile, stage_settings
from espalier.steps.stopping import before_forced_end, stopping_on_signals
from espalier.storage import restore_names
from espalier.usage import UsageMeter


def run_stage(
    name: str,
    profile_json: str,
    inputs: Mapping[str, str],
    output: str,
    log_metric: Callable[[str, float], None],
) -> None:
    """Run one stage on the paths that Kubeflow's launcher, or kfp.local, has given it.

    Args:
        name: of the stage, which is also the name of its tracked run.
        profile_json: what `resolve_profile` returned.
        inputs: artifact folder -> its path; Kubeflow's launcher may have filled it with the objects
            of an artifact that was published by us (`espalier.storage.layout`).
        output: path of the artifact folder that the stage publishes.
        log_metric: receives `seconds` and `peak_rss_mb` when the stage has ended.

    Raises:
        SystemExit: the stage refused its input; the message alone is printed, as the last line of
            the step's log, instead of a traceback.
    """
    prepare_environment()
    stage = STAGES[name]
    try:
        with stopping_on_signals(lambda line: _say(name, line), "The step can be run again."):
            profile = parsed_profile(profile_json)
            prepare_torch(profile.threads)
            meter = UsageMeter()
            with stage_tracking(name) as tracked, before_forced_end(lambda: mark_killed(tracked)):
                tracked.params(stage_settings(profile, name))
                tracker = CompositeTracker(ConsoleTracker(name), tracked)
                if name == "prepare_policy":
                    profile = with_starting_policy(profile, Path(output).parent)
                paths = {name: restore_names(Path(path)) for name, path in inputs.items()}
                run_or_fetch(stage, profile, paths, Path(output), tracker, os.environ)
    except EspalierError as error:
        sys.exit(f"error: {name}: {error}")
    usage = meter.read()
    log_metric("seconds", round(usage.seconds, 3))
    log_metric("peak_rss_mb", round(usage.peak_rss_mb, 1))


def _say(stage: str, line: str) -> None:
    sys.stderr.write(f"{stage}: {line}\n")
