"""Promotion on a registry: finds the registry, a version's run, and the policies to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from espalier.config import DEFAULT_MODEL_NAME, Profile, RegistryConfig
from espalier.orchestration.finished_run import (
    FinishedRun,
    judge_of,
    open_finished_run,
    paired_interval,
    suite_judge_of,
)
from espalier.orchestration.runs import RUN_DIR_TAG
from espalier.records import ArtifactError, ProfileError, RegistryError
from espalier.registry.connection import DATABASE_NAME, connect, reaching, shown, tracking_target
from espalier.registry.model import (
    CHALLENGER,
    GATE_REASON,
    PARENT_RUN,
    ModelVersion,
    RegisteredModel,
    load_version,
    model_names,
)
from espalier.registry.promotion import (
    Contaminated,
    FindContaminated,
    Promotion,
    PromotionGate,
    promote,
    rollback,
)
from espalier.registry.registration import PROFILE_NAME
from espalier.steps.profiles import saved_profile

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class RegistrySession:
    """A registered model, and the run to judge with if the caller gave one."""

    uri: str
    model_name: str | None
    """None: `chosen_model` finds it."""
    run: FinishedRun | None

    @property
    def model(self) -> RegisteredModel:
        """The registered model, with an open connection."""
        client = connect(self.uri)
        name = self.model_name or chosen_model(model_names(client, self.uri), shown(self.uri))
        return RegisteredModel(client, self.uri, name)

    def versions(self) -> list[ModelVersion]:
        """All versions, newest first.

        Raises:
            RegistryError: there is no such model; the message lists the existing ones.
        """
        return self.model.expect_versions()

    def load(self, reference: str, destination: Path) -> Path:
        """Write the files of `MODEL@alias` or `MODEL/version` to `destination`, unchanged."""
        return load_version(self.uri, reference, destination)

    def rollback(self) -> Promotion:
        """Move @champion back to the previous version."""
        return rollback(self.model)

    def promote(self, version: str | None) -> Promotion:
        """Make a version (default: the challenger) champion, if it passes its run's gate.

        The run's folder is needed where the champion must first be judged on the run's suite.
        """
        model = self.model
        challenger = model.version(version or CHALLENGER)
        profile = self.run.profile if self.run else _profile_behind(model, challenger)

        def judge(policy_dir: Path, suite_dir: Path) -> pd.DataFrame:
            run = self.run or _run_behind(model, challenger)
            return judge_of(run)(policy_dir, suite_dir)

        def judge_on(policy_dir: Path, suite: str, digest: str) -> pd.DataFrame:
            from espalier.orchestration.lineage import training_of_directory

            run = self.run or _run_behind(model, challenger)
            training = training_of_directory(policy_dir, model)
            return suite_judge_of(run, training)(policy_dir, suite, digest)

        gate = PromotionGate(
            profile.registry, paired_interval(profile), judge, judge_on, self._contaminated(profile)
        )
        return promote(model, gate, version=challenger.version)

    def _contaminated(self, profile: Profile) -> FindContaminated:
        """A function that finds held-out tasks of a version in another version's training data."""
        from espalier.evaluation.contamination import contamination
        from espalier.orchestration.lineage import lineage_of_version, training_of_version

        model = self.model
        behind = run_behind(model)

        def find(version: ModelVersion, judged: ModelVersion) -> Contaminated:
            held = lineage_of_version(model, judged, behind)
            if held is None or not held.heldout.tasks:
                return Contaminated(
                    frozenset(), f"the facts of the held-out questions of {judged.label}"
                )
            training = training_of_version(model, version, behind)
            found = contamination(training, held.heldout, profile.evaluation.contamination)
            return Contaminated(frozenset(found.tasks), "; ".join(found.unknown))

        return find

    def promote_forced(self, version: str | None, reason: str) -> Promotion:
        """Make a version champion without the gate, and record the reason."""
        profile = self.run.profile if self.run else None
        config = profile.registry if profile else RegistryConfig()
        gate = PromotionGate(config, _unused, _unused)
        return promote(self.model, gate, version=version, force_reason=reason)


def open_registry(run_dir: Path | None, model_name: str | None, runs_dir: Path) -> RegistrySession:
    """Open the registry of MLFLOW_TRACKING_URI, or the sqlite database next to the run folders.

    Args:
        run_dir: the run to judge with; the database is in its parent folder.
        model_name: None means the run's model, or the one that `chosen_model` finds.
        runs_dir: folder with the database, if neither a run nor MLFLOW_TRACKING_URI is given.

    Raises:
        RegistryError: no server is given, and there is no database.
    """
    run = open_finished_run(run_dir) if run_dir else None
    database = (run_dir.resolve().parent if run_dir else runs_dir) / DATABASE_NAME
    config = run.profile.registry if run else RegistryConfig()
    target = tracking_target(database, config.experiment)
    if missing := target.missing_database:
        raise RegistryError(
            f"{missing}: no such registry, because no run has registered anything. Run the "
            "command next to runs/, give that directory with --runs, or set MLFLOW_TRACKING_URI"
        )
    return RegistrySession(target.uri, model_name or (run.profile.model_name if run else None), run)


def chosen_model(names: Sequence[str], where: str) -> str:
    """The model to use if none is given: the default of profiles, or the only one.

    Raises:
        RegistryError: there are several, and none is the default.
    """
    if DEFAULT_MODEL_NAME in names or not names:
        return DEFAULT_MODEL_NAME
    if len(names) > 1:
        raise RegistryError(
            f"{where}: several models are registered; give one of {', '.join(names)}"
        )
    return names[0]


def _profile_behind(model: RegisteredModel, version: ModelVersion) -> Profile:
    """The profile that was registered with a version, or else that of its run's folder."""
    if not model.has_file(version, PROFILE_NAME):
        return _run_behind(model, version).profile
    with TemporaryDirectory() as scratch:
        written = model.fetch(version, PROFILE_NAME, Path(scratch))
        return saved_profile(written.read_text(encoding="utf-8"))


def _run_behind(model: RegisteredModel, version: ModelVersion) -> FinishedRun:
    """The run that made a version; the tags of its parent run in MLflow have the folder.

    Raises:
        RegistryError: the folder is not on this machine, or MLflow cannot be reached.
    """
    parent_id = version.tags.get(PARENT_RUN, version.run_id)
    with reaching(model.uri, f"look up the run of {version.label}"):
        tags = model.client.get_run(parent_id).data.tags
    run_dir = tags.get(RUN_DIR_TAG)
    if run_dir is None or not Path(run_dir).is_dir():
        raise RegistryError(
            f"{version.label}: the run that made it is not on this machine "
            f"({run_dir or 'no folder recorded'}). Give a copy of it with --run RUN, or promote "
            "with --force REASON"
        )
    return open_finished_run(Path(run_dir))


def run_behind(model: RegisteredModel) -> Callable[[ModelVersion], FinishedRun | None]:
    """A function that finds the run of a version; None where it is not on this machine."""

    def find(version: ModelVersion) -> FinishedRun | None:
        try:
            return _run_behind(model, version)
        except (RegistryError, ArtifactError, ProfileError):
            return None  # deleted, emptied, or written by another release

    return find


def _unused(*_: object) -> NoReturn:
    raise AssertionError("a forced promotion does not judge policies")


def promotion_record(promotion: Promotion) -> dict[str, Any]:
    """The result of a promotion or a rollback as JSON."""
    comparison = promotion.comparison._asdict() if promotion.comparison else None
    if comparison is not None:
        comparison["suites"] = [suite._asdict() for suite in comparison["suites"]]
    return {**promotion._asdict(), "comparison": comparison}


def version_record(version: ModelVersion) -> dict[str, Any]:
    """A version as JSON."""
    return {
        "model": version.model,
        "version": version.version,
        "aliases": list(version.aliases),
        "gate": version.gate,
        "gate_reason": version.tags.get(GATE_REASON, ""),
        "policy_digest": version.policy_digest,
        "created": version.created,
    }
