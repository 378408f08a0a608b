"""One sqlite database for the whole session, a model a test."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from espalier.config import Profile, RegistryConfig
from espalier.records import Provenance, publishing, read_manifest
from espalier.registry import (
    ParentRun,
    Promotion,
    PromotionGate,
    RegisteredModel,
    TrackingTarget,
    open_parent_run,
    promote,
    tracking_target,
)
from espalier.stages.register import run
from tests.factories.mlflow_database import empty_database

QUESTIONS = 200
CONFIG = '{"model_type": "lfm2"}'
_VARIABLES = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_EXPERIMENT_NAME",
    "ESPALIER_PARENT_RUN",
    "ESPALIER_RUN_ID",
)


@pytest.fixture(scope="session")
def target(tmp_path_factory) -> TrackingTarget:
    with pytest.MonkeyPatch.context() as patch:
        for name in _VARIABLES:
            patch.delenv(name, raising=False)
        database = empty_database(tmp_path_factory.mktemp("mlflow") / "mlflow.db")
        return tracking_target(database, "tests")


@pytest.fixture(scope="session")
def parent(target) -> ParentRun:
    return open_parent_run(target, "a run", {"espalier.profile": "smoke"})


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)


@dataclass
class Workbench:
    """Registers small fake policies under one model name, each from a pipeline run of its own."""

    root: Path
    target: TrackingTarget
    name: str
    count: int = 0
    judged: list[Path] = field(default_factory=list)
    write_policy: Callable[[Path, str], None] = field(default_factory=lambda: write_policy)

    @property
    def profile(self) -> Profile:
        return Profile(registry=RegistryConfig(model_name=self.name, min_questions=QUESTIONS))

    @property
    def model(self) -> RegisteredModel:
        return RegisteredModel.open(self.target.uri, self.name)

    def model_root(self) -> Path:
        return Path(str(self.target.artifact_location))

    def inputs(
        self,
        em: float,
        *,
        warm: float = 0.2,
        suite: str = "s" * 64,
        n: int = QUESTIONS,
        fallen: int = 0,
    ):
        self.count += 1
        folder = self.root / f"run{self.count}"
        self.write_policy(folder / "trained_policy", f"weights {self.count}")
        write_accepted(folder / "accepted")
        write_evaluation(folder, {"trained": em, "warm_start": warm}, suite, n, fallen)
        return {name: folder / name for name in ("accepted", "evaluation", "trained_policy")}

    def register(self, em: float, **kinds) -> str:
        return self.register_inputs(self.inputs(em, **kinds))

    def register_inputs(self, inputs) -> str:
        parent = open_parent_run(self.target, f"run {self.count}", {})
        with parent.stage("register") as tracker:
            run(self.profile, inputs, self.root / f"out{self.count}", tracker)
        return json.loads((self.root / f"out{self.count}" / "run.json").read_text())["version"]

    def lead(self, em: float, **kinds) -> Promotion:
        """Register a policy that passes the gate, and promote it."""
        self.register(em, **kinds)
        return promote(self.model, self.gate())

    def gate(self, *, champion_em: float | None = None) -> PromotionGate:
        def judge(policy_dir: Path, suite_dir: Path) -> pd.DataFrame:
            assert (policy_dir / "model.safetensors").is_file()
            assert champion_em is not None, "the champion had its result already"
            self.judged.append(policy_dir)
            tasks = pd.read_parquet(suite_dir / "questions.parquet")["task_id"].unique()
            return pd.DataFrame({"task_id": tasks, "em": exact(champion_em, len(tasks))})

        return PromotionGate(self.profile.registry, difference, judge)


@pytest.fixture
def bench(tmp_path, target, parent, request) -> Workbench:
    name = re.sub(r"[^\w.-]+", "-", request.node.name)
    return Workbench(tmp_path, target, name)


def exact(em: float, n: int) -> np.ndarray:
    return np.arange(n) < round(em * n)


def difference(challenger: dict[str, bool], baseline: dict[str, bool]) -> tuple[float, ...]:
    """Mean and the normal 95 % interval of the paired difference."""
    gains = np.array([challenger[task] - baseline[task] for task in challenger], dtype=float)
    half = 1.96 * gains.std() / np.sqrt(len(gains))
    return gains.mean(), gains.mean() - half, gains.mean() + half


def provenance(producer: str, **inputs: str) -> Provenance:
    return Provenance(producer=producer, config_digest="c", seed=0, inputs=inputs)


def write_policy(path: Path, weights: str, config: str = CONFIG) -> None:
    with publishing(path, provenance("train")) as draft:
        (draft.path / "policy").mkdir()
        (draft.path / "policy" / "config.json").write_text(config)
        (draft.path / "policy" / "model.safetensors").write_bytes(weights.encode() * 100)
        (draft.path / "history.parquet").write_bytes(b"elsewhere")


def write_accepted(path: Path) -> None:
    with publishing(path, provenance("validate", knowledge="4b" * 32)) as draft:
        (draft.path / "validation.json").write_text("{}")


def write_evaluation(
    folder: Path, ems: dict[str, float], suite: str, n: int, fallen: int = 0
) -> None:
    """The last `fallen` questions are of a group that the warm start alone answers."""
    hops = ["1"] * (n - fallen) + ["4"] * fallen
    trained = read_manifest(folder / "trained_policy").content
    with publishing(folder / "evaluation", provenance("evaluate", trained_policy=trained)) as draft:
        rows = [
            pd.DataFrame(
                {"task_id": [f"t{i}" for i in range(n)], "policy": policy, "em": exact(em, n)}
            )
            for policy, em in ems.items()
        ]
        table = pd.concat(rows, ignore_index=True)
        table["groups"] = [json.dumps({"hops": one}) for one in hops * len(ems)]
        if fallen:
            is_hard = table["groups"] == json.dumps({"hops": "4"})
            table.loc[is_hard, "em"] = table.loc[is_hard, "policy"] == "warm_start"
        table.to_parquet(draft.path / "questions.parquet", index=False)
        figures = {
            policy: {"em": em, "n": n, "ci95": [em - 0.05, em + 0.05]} for policy, em in ems.items()
        }
        results = {"suite": {"digest": suite, "n": n}, "eval": figures}
        (draft.path / "results.json").write_text(json.dumps(results))
        (draft.path / "suite.json").write_text("{}")
