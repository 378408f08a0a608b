"""Probe: a run of the whole chain, cut to about a minute, whose measurements plans use.

Policy, batches, rows and limits are the profile's, so that memory and time per token equal those of
the whole run; steps and questions are few. All tasks are made, because some families run programs
for each. The probe has its own MLflow database, so that nothing is registered among the user's
models. It cannot measure the length of episodes of a trained policy; plans assume the teacher's.

The figures are stored in RUNS/probes/KEY.json, where KEY is a digest of the policy's model and
size, the threads and the device. For another environment only the figures of speed are used.
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
"""Name of the folder of probes among the runs."""
PROBE_STEPS = 2
"""Steps of reinforcement learning: the first includes work that is done only once."""
_PRESTAGE_STEPS = 40
"""More steps than elsewhere: the pre-stage is the longest of small runs and starts slowly."""
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
"""Figures that depend on the environment, and are not used for another one."""


class Probe(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Stored result of a probe."""

    environment: str
    figures: dict[str, float]
    """Measured `Figures`, by name."""


def probe_profile(profile: Profile) -> Profile:
    """Profile of the probe: few steps and tasks, everything else unchanged."""
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
        # without screening and filters: a policy that never answers has no group of mixed rewards
        "curriculum.screening_rollouts": 0,
        "training.algorithm.filters": [],
        "training.steps": _probe_steps(profile),
        "training.evaluate_every": PROBE_STEPS,
        "training.dev_questions": 1,  # so that the learner's time is that of updates
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
    """Run the probe and store its figures, replacing those of an earlier one.

    Raises:
        EspalierError: the probe failed, as the run itself would.
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
    """Figures from a probe of this model on this machine; {} without one.

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
            f"{path}: not a readable result of a probe. Delete it; --probe measures again."
        ) from error
    known = set(Figures.__annotations__)
    if probe.environment != profile.environment.name:
        known -= set(_OF_TASKS)
    return {name: value for name, value in probe.figures.items() if name in known}


def _path(profile: Profile, machine: Machine, runs_dir: Path) -> Path:
    """File of a profile's probe."""
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
    """Unset MLflow's address within the block, so that its database lies beside the probe's run."""
    address: Any = os.environ.pop(_TRACKING, None)
    try:
        yield
    finally:
        if address is not None:
            os.environ[_TRACKING] = address
