"""RUN/summary.json: the figures of a run in one documented shape, for scripts to read.

Rates are 0-1, times are seconds, memory is MiB. Every key is there from the first stage on, and a
figure that no stage has measured yet is null; `stages` and `digests` list only stages that ran.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from espalier.chain import STAGES
from espalier.records import ArtifactError, write_whole
from espalier.reporting.run_directory import RunDirectory, open_run

Interval = tuple[float, float]
_RATES_BY_K = {"pass_at_k": "pass_at_", "pass_hat_k": "pass_hat_"}


class _Figures(BaseModel):
    """Part of the summary; other keys of the stage's file are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class PolicyFigures(_Figures):
    """One policy on the held-out questions."""

    em: float
    """Share of questions whose greedy answer matches exactly."""
    f1: float | None = None
    """Token F1; None if the family's answers are no texts."""
    n: int
    ci95: Interval
    """Bootstrap interval of `em`."""
    pass_at_k: dict[str, float] = Field(default_factory=dict)
    """k -> share of questions that at least one of k sampled answers gets right."""
    pass_hat_k: dict[str, float] = Field(default_factory=dict)
    """k -> share of questions that all of k sampled answers get right."""
    lost_episodes: int | None = None
    """Episodes that infrastructure faults ended in every attempt; they count as wrong."""
    broke_sandbox_episodes: int | None = None
    """Episodes in which a program of the policy broke its own sandbox; they count as wrong."""

    closed_book_em: float | None = None
    """Share of answers from memory, without tools, that match exactly."""
    closed_book_em_ci95: Interval | None = None
    grounded: float | None = None
    """Share of the answers that a tool had returned in the same episode."""
    grounded_ci95: Interval | None = None
    grounded_right: float | None = None
    """Share of the right answers that a tool had returned in the same episode."""

    added_lines_em: float | None = None
    """EM of the questions made from triples, if `ingest` added lines of triples to documents."""
    added_lines_em_ci95: Interval | None = None
    as_written_em: float | None = None
    """EM of the same questions over the documents without these lines."""
    as_written_em_ci95: Interval | None = None
    as_written_n: int | None = None
    """Number of these questions."""

    @model_validator(mode="before")
    @classmethod
    def _gather_k(cls, figures: Any) -> Any:  # noqa: ANN401 (what results.json holds)
        """Turn `pass_at_4` of results.json, if measured, into `pass_at_k` = {"4": ...}."""
        if not isinstance(figures, Mapping):
            return figures
        gathered = {name: _by_k(figures, prefix) for name, prefix in _RATES_BY_K.items()}
        return {**gathered, **figures}


class Gain(_Figures):
    """EM of the trained minus EM of the warm-started policy, on the same questions."""

    em: float
    ci95: Interval
    """Bootstrap interval of the paired difference."""


class EvaluationFigures(_Figures):
    """The three policies of a run, and the gain of training."""

    untrained: PolicyFigures | None = None
    warm_start: PolicyFigures | None = None
    trained: PolicyFigures | None = None
    gain: Gain | None = None


class StageFigures(_Figures):
    """Cost of one stage."""

    seconds: float | None = None
    peak_rss_mb: float | None = None


class Throughput(_Figures):
    """Speed of the two longest stages."""

    sft_tokens_per_s: float | None = None
    rollout_tokens_per_s: float | None = None
    update_tokens_per_s: float | None = None
    update_matmul_share: float | None = None
    """Floating-point rate of the updates as a share of that of a large matrix product, 0-1."""


_MEASURED_IN = {
    "sft_tokens_per_s": "warm_start",
    "rollout_tokens_per_s": "train",
    "update_tokens_per_s": "train",
    "update_matmul_share": "train",
}
"""Figure of `Throughput` -> the stage that measures it."""


class RegistryEntry(_Figures):
    """The registered model version."""

    name: str | None = None
    version: int | None = None
    policy_digest: str | None = None
    """Digest over the policy's files, as tagged on the version."""


class RunSummary(BaseModel, frozen=True, extra="forbid"):
    """The shape of RUN/summary.json."""

    eval: EvaluationFigures = EvaluationFigures()
    stages: dict[str, StageFigures] = Field(default_factory=dict)
    """Stage name -> its cost, in the order of the chain."""
    throughput: Throughput = Throughput()
    registry: RegistryEntry = RegistryEntry()
    digests: dict[str, str] = Field(default_factory=dict)
    """Artifact folder -> content digest."""


def write_summary(run_dir: Path, registry: Mapping[str, Any] | None) -> dict[str, Any]:
    """Write RUN/summary.json in one rename and return its content.

    Args:
        run_dir: folder of a finished or partly finished run.
        registry: `name` and `version` of the registered model; None reads them from the artifact of
            the register stage.

    Raises:
        ArtifactError: the folder is not a run, or an artifact was damaged after publishing.
    """
    summary = summarize(open_run(run_dir), registry)
    text = summary.model_dump_json(indent=2)
    write_whole(run_dir / "summary.json", text + "\n")
    return json.loads(text)


def summarize(run: RunDirectory, registry: Mapping[str, Any] | None) -> RunSummary:
    """The summary of the artifacts published so far."""
    results = run.json("evaluate", "results.json") or {}
    in_order = sorted(run.artifacts, key=_stage_order)
    measured = {stage: run.measured(stage) for stage in in_order}
    try:
        return RunSummary(
            eval=EvaluationFigures.model_validate(results.get("eval", {})),
            stages={stage: StageFigures.model_validate(measured[stage]) for stage in in_order},
            throughput=Throughput.model_validate(
                {name: measured.get(stage, {}).get(name) for name, stage in _MEASURED_IN.items()}
            ),
            registry=RegistryEntry.model_validate(dict(registry or _registered(run))),
            digests={
                a.path.name: a.manifest.content for a in map(run.artifacts.get, in_order) if a
            },
        )
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise ArtifactError(
            f"{run.path}: {error.title}.{where} is not of the documented shape ({fault['msg']}). "
            "Run the stage that wrote it again."
        ) from error


def _by_k(figures: Mapping[str, Any], prefix: str) -> dict[str, float]:
    ks = (key.removeprefix(prefix) for key in figures if key.startswith(prefix))
    measured = {int(k) for k in ks if k.isdecimal() and figures[prefix + k] is not None}
    return {str(k): figures[f"{prefix}{k}"] for k in sorted(measured)}


def _registered(run: RunDirectory) -> dict[str, Any]:
    """Name and digest of the registration artifact, and the version of its run.json."""
    artifact = run.artifacts.get("register")
    if artifact is None:
        return {}
    return {**(artifact.json("registered.json") or {}), **artifact.measured()}


def _stage_order(stage: str) -> tuple[int, str]:
    stages = list(STAGES)
    return (stages.index(stage) if stage in stages else len(stages), stage)
