"""A run of the whole chain, cut to about a minute, that later plans read as an earlier run.

Policy, batches, rows and limits are the profile's, so that memory and time by the token are those
of the whole run; steps and questions are few. All tasks are made, as some families run programs for
each. Nothing is registered where the user's models are: the probe has a database of its own. How
long episodes are once the policy acts it cannot say: they are planned as the teacher's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from espalier.config import Profile, parse_profile
from espalier.planning.earlier_runs import PROBES
from espalier.records import ProfileError

PROBE_STEPS = 2
"""Steps of reinforcement learning: the first has what is done once."""
_PRESTAGE_STEPS = 40
"""More than elsewhere: it is the longest stage of small runs, and its first steps are slower."""
_SFT_STEPS = 6
_HELDOUT_TASKS = 60
_DEV_QUESTIONS = 24
_TRACKING = "MLFLOW_TRACKING_URI"


def probe_profile(profile: Profile) -> Profile:
    """The profile of the probe: few steps and tasks, all else as it is."""
    tables = profile.model_dump(mode="json")
    settings: dict[str, object] = {
        "synthesis.heldout_tasks": min(profile.synthesis.heldout_tasks, _HELDOUT_TASKS),
        "policy.start": "base",
        "policy.prestage.steps": min(profile.policy.prestage.steps, _PRESTAGE_STEPS),
        "continued_pretraining.steps": min(profile.continued_pretraining.steps, _SFT_STEPS),
        "warm_start.steps": min(profile.warm_start.steps, _SFT_STEPS),
        "warm_start.evaluate_every": _SFT_STEPS,
        "warm_start.dev_questions": min(profile.warm_start.dev_questions, _DEV_QUESTIONS),
        "curriculum.candidates": min(profile.curriculum.candidates, 32),
        # a policy that never answers has no group of mixed rewards: all are learned from
        "curriculum.screening_rollouts": 0,
        "training.algorithm.filters": [],
        "training.steps": _probe_steps(profile),
        "training.evaluate_every": PROBE_STEPS,
        "training.dev_questions": 1,  # the learner's time is to be the update's
        "evaluation.sampled_questions": 1,
        "evaluation.bootstrap_resamples": 100,
        "registry.model_name": "espalier-probe",
        "registry.must_not_fall": [],
    }
    tables["evaluation"].pop("suites", None)
    tables["warm_start"].pop("hindsight", None)
    tables["warm_start"].pop("preferences", None)
    return parse_profile(tables, list(settings.items()), Path(f"probe of {profile.name}"))


def _probe_steps(profile: Profile) -> int:
    critic = profile.training.algorithm.critic
    steps = PROBE_STEPS + (critic.warmup_of(profile.training.steps) if critic else 0)
    return min(profile.training.steps, steps)


def run_probe(profile: Profile, runs_dir: Path, say: Callable[[str], None]) -> Path:
    """Run the probe and keep it among the runs, in the place of an earlier one of this profile.

    Returns:
        Its folder.

    Raises:
        EspalierError: whatever would stop the run itself, found a minute into it; or the profile's
            name is no folder name, so that what is replaced would not be a probe.
    """
    from espalier.orchestration.runs import run_in_process

    if profile.name in {".", ".."} or "/" in profile.name:
        raise ProfileError(
            f"name = {profile.name!r}: a probe is kept in a folder of that name, and replaces it; "
            "give the profile a name without / for it (--set name=...)"
        )
    shortened = probe_profile(profile)
    run_dir = runs_dir / PROBES / profile.name
    shutil.rmtree(run_dir, ignore_errors=True)
    with _without_tracking_server():
        run_in_process(shortened, run_dir, say)
    return run_dir


@contextmanager
def _without_tracking_server() -> Iterator[None]:
    """Without the variable MLflow's database lies beside the run, among the probes."""
    address: Any = os.environ.pop(_TRACKING, None)
    try:
        yield
    finally:
        if address is not None:
            os.environ[_TRACKING] = address
