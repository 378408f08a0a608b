"""The list of a run's stages, for the in-process runner, Kubeflow, Jobs and the docs.

Each stage is `espalier.stages.NAME`; it reads artifact folders and publishes one. A changed section
of the profile reruns the stages that read it, and the stages whose inputs come out differently.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from espalier.config import (
    Profile,
    named_reference,
    open_named_model,
    reads_knowledge,
)
from espalier.records import (
    MANIFEST_NAME,
    ArtifactError,
    Manifest,
    Provenance,
    Tracker,
    content_digest,
    expect_replaceable,
    json_digest,
    open_artifact,
    read_manifest,
    stale_artifacts,
    tree_digest,
)

_HARDWARE = ("hardware",)
_EPISODE_REWARD = ("reward.outcome", "reward.format", "reward.outcome_scale", "reward.judges")
"""Keys of an environment's own reward; the other terms of `reward` apply only in training."""
_EPISODES = ("agent", "environment", "episode", "rollout", "search")
_EPISODES_WITH_REWARD = (*_EPISODES, *_EPISODE_REWARD)
"""Sections that determine an episode and its reward."""
_USES_DIALECT = ("synthesize", "validate")
"""Stages that do not load the policy but use its dialect."""
View = Literal["page", "summary"]
"""Output of a step in Kubeflow's UI: an HTML page or Markdown text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Description of a stage: inputs, output, sections of the profile, needs of its pod."""

    name: str
    summary: str
    inputs: tuple[str, ...] = ()
    """Artifact folders that it reads, which are outputs of stages before it."""
    output: str
    """Artifact folder that it publishes."""
    output_summary: str
    output_kind: Literal["dataset", "model", "artifact"] = "dataset"
    sections: tuple[str, ...]
    """Sections of the profile that it reads, or single keys of them."""
    uses_policy: bool = False
    """Whether it computes with a policy; its pod gets the GPUs."""
    plays_episodes: bool = False
    """Whether the policy or a teacher acts; its pod may use sandboxes and the inference server."""
    shows: View | None = None
    """What its step shows in Kubeflow's UI beside its output: one thing, so that the graph of a run
    fits a screen (`espalier.reporting.step_views`)."""
    judges: bool = False
    """Whether it may refuse rows. Under Kubeflow its step then succeeds, so that the report is
    kept, and the next step, `require_valid`, ends the run."""

    def run(
        self,
        profile: Profile,
        inputs: Mapping[str, Path],
        output_dir: Path,
        tracker: Tracker,
        *,
        external_digests: Mapping[str, str] | None = None,
    ) -> Manifest:
        """Run the stage in this process.

        Its module is imported only now, so that listing the stages is cheap.

        Args:
            profile: the run's profile.
            inputs: artifact folder -> its path.
            output_dir: path of the artifact that is published.
            tracker: takes settings and figures.
            external_digests: result of `external_inputs`, if the caller has it already.

        Raises:
            ArtifactError: something else than an artifact is at `output_dir`.
            EspalierError: what the stage raises.
        """
        expect_replaceable(output_dir)  # hours before it is published
        module: Any = importlib.import_module(f"espalier.stages.{self.name}")
        return module.run(profile, inputs, output_dir, tracker, external_digests=external_digests)

    def digest(self, profile: Profile) -> str:
        """Digest of the settings that the stage reads: seed, threads and its sections."""
        return profile.digest(self.sections)

    def is_current(self, made: Manifest, profile: Profile, inputs: Mapping[str, str]) -> bool:
        """Whether an artifact was made by this stage with these settings from these inputs.

        A stage may record more inputs than the chain gives it, such as a champion of the registry.

        Args:
            made: manifest of the stage's output or checkpoint.
            profile: the run's profile.
            inputs: content digests of the input folders, and `external_inputs`.
        """
        return made.config_digest == self.digest(profile) and all(
            made.inputs.get(name) == content for name, content in inputs.items()
        )

    def is_reusable(self, profile: Profile) -> bool:
        """Whether a run may use the output that another run made from equal inputs.

        False for `register`, which makes a model version for each run, and for knowledge from a
        database, whose content is in no digest.
        """
        reads_database = self.name == "ingest" and profile.knowledge.source == "sql"
        return self.name != "register" and not reads_database

    def external_paths(self, profile: Profile) -> dict[str, Path]:
        """Key of the profile -> a user's own file or folder that the stage reads."""
        paths: dict[str, Path | None] = {}
        match self.name:
            case "ingest":
                paths |= profile.environment.external_files()
                if reads_knowledge(profile.environment):
                    paths |= profile.knowledge.external_files()
            case "validate":
                paths |= {
                    f"curation.benchmarks.{name}": path
                    for name, path in profile.curation.benchmarks.items()
                }
            case "prepare_policy":
                paths["policy.model"] = profile.policy.model
            case "warm_start" | "train" | "evaluate":
                read = {"warm_start": profile.warm_start, "train": profile.reward}
                paths |= read.get(self.name, profile.evaluation).external_files()
            case _:
                pass
        if "agent" in self.sections:
            paths |= profile.agent.external_files()
        return {key: path for key, path in paths.items() if path is not None}

    def external_inputs(self, profile: Profile) -> dict[str, str]:
        """Key of the profile -> digest of a user's own file that the stage reads.

        They count by content, not by path: an edited source runs the stage again. What is not
        there is left out: the stage itself says so. Classes of other packages count by
        their code, and a given model, where only its dialect matters, by that. A named model counts
        by what its manifest calls its content, wherever it lies.
        """
        found = {
            key: tree_digest(path)
            for key, path in self.external_paths(profile).items()
            if path.exists()
        }
        return found | self._recorded_digests(profile)

    def _recorded_digests(self, profile: Profile) -> dict[str, str]:
        """External inputs whose digest comes from a manifest, a chat template or code."""
        found: dict[str, str] = {}
        named = named_reference(profile.policy.model)
        if self.name == "prepare_policy" and named is not None and named.directory.exists():
            found["policy.model"] = open_named_model(named).content
        found |= profile.code_digests(self.sections)
        if self.name in _USES_DIALECT and profile.policy.model is not None:
            found["policy.dialect"] = json_digest(profile.policy.model_dialect)
        return found


CHAIN: tuple[Stage, ...] = (
    Stage(
        name="ingest",
        summary="Read the knowledge source into triples, documents and search indexes.",
        output="knowledge",
        output_summary="triples, documents and indexes, or the user's problems",
        sections=("knowledge", "splits", "environment"),
    ),
    Stage(
        name="synthesize",
        summary="Draw questions with proven answers and let the teacher answer some of them.",
        inputs=("knowledge",),
        output="synthetic",
        output_summary="tasks and trajectories",
        sections=(
            "environment",
            "splits",
            "search",
            "synthesis",
            "agent_texts",
            "teacher",
            "policy.dialect",
            "episode.max_turns",
            "episode.max_turn_calls",
            *_EPISODE_REWARD,
        ),
        plays_episodes=True,
    ),
    Stage(
        name="validate",
        summary="Check tasks and trajectories; a failing critical expectation stops the run.",
        inputs=("knowledge", "synthetic"),
        output="accepted",
        output_summary="tasks and trajectories that passed",
        sections=("environment", "validation", "curation", "policy.dialect"),
        shows="page",
        judges=True,
    ),
    Stage(
        name="prepare_policy",
        summary="Make the base policy: tiny, a given model directory, or the champion.",
        inputs=("knowledge", "accepted"),
        output="base_policy",
        output_summary="model directory before any training on tasks",
        output_kind="model",
        sections=("policy", "environment", "episode", "search", *_HARDWARE),
        uses_policy=True,
        shows="page",
    ),
    Stage(
        name="continue_pretraining",
        summary="Next-token training on agent texts, where the profile asks for it.",
        inputs=("accepted", "base_policy"),
        output="pretrained_policy",
        output_summary="model directory",
        output_kind="model",
        sections=("continued_pretraining", "policy.dialect", "environment", "episode", *_HARDWARE),
        uses_policy=True,
        shows="page",
    ),
    Stage(
        name="warm_start",
        summary="Imitate the teacher's actions (masked SFT).",
        inputs=("knowledge", "accepted", "pretrained_policy"),
        output="warm_policy",
        output_summary="model directory",
        output_kind="model",
        sections=(
            "warm_start",
            "training.renamed_share",
            "policy.dialect",
            *_EPISODES_WITH_REWARD,
            *_HARDWARE,
        ),
        uses_policy=True,
        plays_episodes=True,
        shows="page",
    ),
    Stage(
        name="filter_curriculum",
        summary="Estimate pass rates and keep the tasks that can be learned from.",
        inputs=("knowledge", "accepted", "warm_policy"),
        output="curriculum",
        output_summary="learnable tasks",
        sections=("curriculum", "policy.dialect", "training.temperature", *_EPISODES_WITH_REWARD),
        uses_policy=True,
        plays_episodes=True,
    ),
    Stage(
        name="train",
        summary="Train the policy by reinforcement learning on episodes with tools.",
        inputs=("knowledge", "accepted", "curriculum", "warm_policy"),
        output="trained_policy",
        output_summary="model directory with the best weights by dev score",
        output_kind="model",
        sections=(
            "training",
            "curriculum",
            "self_play",
            "policy.dialect",
            "reward",
            *_EPISODES,
            *_HARDWARE,
        ),
        uses_policy=True,
        plays_episodes=True,
        shows="page",
    ),
    Stage(
        name="evaluate",
        summary="Judge untrained, warm-started and trained policy on the same held-out questions.",
        inputs=("knowledge", "accepted", "base_policy", "warm_policy", "trained_policy"),
        output="evaluation",
        output_summary="results on the held-out suite",
        sections=("evaluation", "policy.dialect", *_EPISODES_WITH_REWARD),
        uses_policy=True,
        plays_episodes=True,
        shows="page",
    ),
    Stage(
        name="register",
        summary="Register the trained policy as a model version with the alias challenger.",
        inputs=("evaluation", "trained_policy", "accepted"),
        output="registration",
        output_summary="name, version and digests of the model version",
        output_kind="artifact",
        sections=("registry",),
        shows="summary",
    ),
)
"""All stages in the order in which they run."""

RELABELLED_FOLDER = "hindsight"
"""Folder of a policy's artifact: failed attempts as demonstrations of tasks that they solved."""
POSED_FOLDER = "posed"
"""Folder of a policy's artifact: the tasks that self-play proposed and kept."""
OWN_TRACES_FOLDER = "own_traces"
"""Folder of a policy's artifact: counts of the user's own demonstrations and pairs."""
OWN_QUESTIONS = f"{OWN_TRACES_FOLDER}/questions.jsonl"
"""File with the questions of own demonstrations and pairs, one JSON string per line."""
FURTHER_TASKS = (f"{RELABELLED_FOLDER}/tasks.jsonl", f"{POSED_FOLDER}/tasks.jsonl")
"""Files of a policy's artifact with training tasks besides the accepted ones."""

STAGES: dict[str, Stage] = {stage.name: stage for stage in CHAIN}


def opened(inputs: Mapping[str, Path]) -> dict[str, Manifest]:
    """Check all files of a stage's inputs, and return the manifests by folder.

    Raises:
        ArtifactError: a file is missing or damaged; the message names it.
    """
    return {name: open_artifact(path) for name, path in inputs.items()}


def policy_digest(manifest: Manifest) -> str:
    """Digest of the model directory inside a policy artifact; equal for equal weights."""
    files = {name: digest for name, digest in manifest.files.items() if name.startswith("policy/")}
    return content_digest(files)


def provenance(
    stage: str,
    profile: Profile,
    manifests: Mapping[str, Manifest],
    external_digests: Mapping[str, str] | None = None,
) -> Provenance:
    """Provenance for the manifest of a stage's output: its settings and inputs.

    Args:
        stage: name of the stage.
        profile: the run's profile.
        manifests: input folder -> its manifest.
        external_digests: result of `Stage.external_inputs`, if the caller has it already: the
            files may have gigabytes.
    """
    described = STAGES[stage]
    if external_digests is None:
        external_digests = described.external_inputs(profile)
    return Provenance(
        producer=stage,
        config_digest=described.digest(profile),
        seed=profile.seed,
        inputs={name: manifest.content for name, manifest in manifests.items()}
        | {**external_digests},
    )


def expect_of_one_run(run_dir: Path, *outputs: str) -> None:
    """Check artifacts of a run: published, undamaged, and made from those beside them.

    Raises:
        ArtifactError: one is not; the message says how to finish the run.
    """
    finish = f"Finish it: espalier run --out {run_dir}, with its --profile and --set"
    for stage in CHAIN:
        if stage.output in outputs:
            if not (run_dir / stage.output / MANIFEST_NAME).is_file():
                raise ArtifactError(
                    f"{run_dir}: has no {stage.output}, as the stage {stage.name} of this run has "
                    f"not ended. {finish}"
                )
            open_artifact(run_dir / stage.output)
    present = [s.output for s in CHAIN if (run_dir / s.output / MANIFEST_NAME).is_file()]
    stale = stale_artifacts({name: read_manifest(run_dir / name) for name in present})
    for name in outputs:
        if name in stale:
            raise ArtifactError(
                f"{run_dir / name}: was made from another {stale[name]} than the one beside it, as "
                f"the run was begun anew with other settings, and stopped. {finish}"
            )
