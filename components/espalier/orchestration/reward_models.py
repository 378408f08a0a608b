"""Trains reward models on attempts of a run's warm policy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from espalier.determinism import prepare_torch
from espalier.orchestration.finished_run import open_finished_run
from espalier.records import NullTracker, Tracker

if TYPE_CHECKING:
    from espalier.training.reward_models.head import Kind


def train_reward_model(
    run_dir: Path,
    output_dir: Path,
    kind: Kind,
    overrides: Sequence[str],
    tracker: Tracker | None = None,
) -> dict[str, float]:
    """Train a reward model and return its figures.

    Args:
        run_dir: a run that has finished its warm start.
        output_dir: folder of the model.
        kind: kind of the model.
        overrides: `section.key=value` over the run's profile, such as `reward_model.tasks=400`.
        tracker: takes progress and figures; None discards them.

    Raises:
        ArtifactError: the run has no warm policy yet, or an artifact is damaged.
        ProfileError: an override is invalid.
    """
    from espalier.training.reward_models.fitting import INPUTS, fit_reward_model

    run = open_finished_run(run_dir)
    profile = run.changed(overrides)
    prepare_torch(profile.threads)
    inputs = {name: run.folder(name) for name in INPUTS}
    fit_reward_model(profile, inputs, output_dir, kind, tracker or NullTracker())
    return json.loads((output_dir / "run.json").read_text(encoding="utf-8"))
