"""A run of the whole chain, cut to about a minute, of which plans keep what it measured.

Policy, batches, rows and limits are the profile's, so that memory and time by the token are those
of the whole run; steps and questions are few. All tasks are made, as some families run programs for
each. Nothing is registered where the user's models are: the probe has a database of its own. How
long episodes are once the policy acts it cannot say: they are planned as the teacher's.

RUNS/probes/KEY.json has the figures, where KEY is a digest of the policy's model and size, the
threads and the device. Of another environment they say how fast this machine computes, and nothing
of its episodes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from espalier.config import Profile, parse_profile
from espalier.planning.figures import Figures, Measured
from espalier.planning.machine import Machine
from espalier.planning.probe_figures import probe_figures
from espalier.planning.sizes import policy_size
from espalier.records import ArtifactError, json_digest, write_whole

_FOLDER = "probes"
"""Among the runs."""
PROBE_STEPS = 2
"""Steps of reinforcement learning: the first has what is done once."""
_PRESTAGE_STEPS = 40
"""More than elsewhere: it is the longest stage of small runs, and its first steps are slower."""
_SFT_STEPS = 6
_HELDOUT_TASKS = 60
_DEV_QUESTIONS = 24
_TRACKING = "MLFLOW_TRACKING_URI"
_OF_TASKS = (
    "demonstration_tokens",
    "episode_tokens",
    "action_tokens",
    "preamble_share",
    "common_share",
    "ingest_s",
    "synthesis_task_s",
    "data_mib",
)
"""Figures that say nothing of another environment."""


class Probe(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What is kept of a probe."""

    environment: str
    figures: dict[str, float]
    """Some of `Figures`, by name."""


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


def run_probe(
    profile: Profile, machine: Machine, runs_dir: Path, say: Callable[[str], None]
) -> None:
    """Run the probe and keep what it measured, in the place of what an earlier one did.

    Raises:
        EspalierError: whatever would stop the run itself, found a minute into it.
    """
    from espalier.orchestration.runs import run_in_process

    shortened = probe_profile(profile)
    kept = _path(profile, machine, runs_dir)
    work = kept.with_suffix("")
    shutil.rmtree(work, ignore_errors=True)
    with _without_tracking_server():
        run_in_process(shortened, work / "run", say)
    probe = Probe(
        environment=profile.environment.name, figures=probe_figures(shortened, work / "run")
    )
    write_whole(kept, probe.model_dump_json(indent=1) + "\n")
    shutil.rmtree(work)


def read_probe(profile: Profile, machine: Machine, runs_dir: Path) -> Measured:
    """What a probe of this model measured on this machine; {} where there was none.

    Raises:
        ArtifactError: the file is damaged.
        PolicyError: the given model's size cannot be read.
    """
    path = _path(profile, machine, runs_dir)
    if not path.is_file():
        return {}
    try:
        probe = Probe.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ArtifactError(
            f"{path}: not what a probe measured. Delete it; --probe measures again."
        ) from error
    known = set(Figures.__annotations__)
    if probe.environment != profile.environment.name:
        known -= set(_OF_TASKS)
    return {name: value for name, value in probe.figures.items() if name in known}


def _path(profile: Profile, machine: Machine, runs_dir: Path) -> Path:
    """Where the probe of a profile is kept."""
    key = {
        "model": profile.policy.model_dump(mode="json", exclude={"prestage", "start"}),
        "size": asdict(policy_size(profile.policy)),
        "threads": profile.threads,
        "device": _device(profile, machine),
    }
    return runs_dir / _FOLDER / f"{json_digest(key)[:16]}.json"


def _device(profile: Profile, machine: Machine) -> str:
    if machine.accelerator_mib is None or profile.hardware.device.startswith("cpu"):
        return "cpu"
    import torch

    return torch.cuda.get_device_name()


@contextmanager
def _without_tracking_server() -> Iterator[None]:
    """Without the variable MLflow's database lies beside the run, among the probes."""
    address: Any = os.environ.pop(_TRACKING, None)
    try:
        yield
    finally:
        if address is not None:
            os.environ[_TRACKING] = address
