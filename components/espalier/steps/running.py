"""What surrounds a stage inside a Kubeflow step: profile, tracker, determinism, error text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from espalier.artifacts import EspalierError, Tracker
from espalier.config import Profile
from espalier.registry.tracking import mark_killed, stage_tracking
from espalier.steps.console import ConsoleTracker
from espalier.steps.determinism import prepare_environment, prepare_torch
from espalier.steps.profiles import parsed_profile, stage_settings
from espalier.steps.stopping import before_forced_end, stopping_on_signals
from espalier.steps.trackers import CompositeTracker
from espalier.steps.usage import UsageMeter


@dataclass(frozen=True, slots=True)
class Step:
    """What a component's body hands to its stage."""

    profile: Profile
    tracker: Tracker


@contextmanager
def running(
    stage: str, profile_json: str, log_metric: Callable[[str, float], None]
) -> Iterator[Step]:
    """Run one stage inside the block; a stage module is imported there, after the environment.

    Args:
        stage: name of the stage, which is also the name of its tracked run.
        profile_json: what `resolve_profile` returned.
        log_metric: receives `seconds` and `peak_rss_mb` when the stage has ended.

    Raises:
        SystemExit: the stage refused its input; the message alone is printed, as the last line of
            the step's log, instead of a traceback.
    """
    prepare_environment()
    try:
        with stopping_on_signals(lambda line: _say(stage, line), "The step can be run again."):
            profile = parsed_profile(profile_json)
            prepare_torch(profile.threads)
            meter = UsageMeter()
            with stage_tracking(stage) as tracked, before_forced_end(lambda: mark_killed(tracked)):
                tracked.params(stage_settings(profile, stage))
                yield Step(profile, CompositeTracker(ConsoleTracker(stage), tracked))
    except EspalierError as error:
        sys.exit(f"error: {stage}: {error}")
    usage = meter.read()
    log_metric("seconds", round(usage.seconds, 3))
    log_metric("peak_rss_mb", round(usage.peak_rss_mb, 1))


def _say(stage: str, line: str) -> None:
    sys.stderr.write(f"{stage}: {line}\n")
