"""The stages in order, and which artifact feeds which: the one table that every runner reads."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from espalier.artifacts import Manifest, Tracker
from espalier.config import Profile


class StageModule(Protocol):
    """What a stage's module offers."""

    Inputs: Callable[..., Any]
    """A record of paths, one field an input artifact."""
    run: Callable[[Profile, Any, Path, Tracker], Manifest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One stage of a chain: `name` reads the folders of `inputs` and publishes `folder`."""

    name: str
    module: str
    """Imported when the stage runs, so that a listing of the chain costs nothing."""
    folder: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Field of the stage's `Inputs` -> artifact folder, which is also the KFP output's name."""

    def run(self, profile: Profile, run_dir: Path, tracker: Tracker) -> Manifest:
        """Run the stage on the artifacts of `run_dir` and return what it published there."""
        stage: Any = importlib.import_module(self.module)
        paths = {name: run_dir / folder for name, folder in self.inputs.items()}
        return stage.run(profile, stage.Inputs(**paths), run_dir / self.folder, tracker)


def _link(name: str, room: str, folder: str, *inputs: str) -> Link:
    """A stage whose `Inputs` fields are named after the folders that it reads."""
    module = f"espalier.{room}.stage"
    return Link(name=name, module=module, folder=folder, inputs={name: name for name in inputs})


CHAIN: tuple[Link, ...] = (
    _link("ingest", "knowledge", "knowledge"),
    _link("synthesize", "synthesis", "synthetic", "knowledge"),
    _link("validate", "validation", "accepted", "knowledge", "synthetic"),
    _link("prepare_policy", "training.prepare_policy", "base_policy", "knowledge", "accepted"),
    _link(
        "continue_pretraining", "training.continue_pretraining", "pretrained_policy",
        "accepted", "base_policy",
    ),
    Link(
        name="warm_start",
        module="espalier.training.warm_start.stage",
        folder="warm_policy",
        inputs={
            "knowledge": "knowledge", "accepted": "accepted", "base_policy": "pretrained_policy"
        },
    ),
    _link(
        "filter_curriculum", "curriculum", "curriculum", "knowledge", "accepted", "warm_policy"
    ),
    Link(
        name="train",
        module="espalier.steps.training",
        folder="trained_policy",
        inputs={
            name: name for name in ("knowledge", "accepted", "curriculum", "warm_policy")
        },
    ),
    _link(
        "evaluate", "evaluation", "evaluation",
        "knowledge", "accepted", "base_policy", "warm_policy", "trained_policy",
    ),
    _link("register", "registry", "registration", "evaluation", "trained_policy", "accepted"),
)  # fmt: skip
"""`pipelines/data_to_model.py` spells the same wiring for Kubeflow; a test compares the two."""
