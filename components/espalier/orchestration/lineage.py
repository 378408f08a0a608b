"""Training data of a policy, from the run that its folder is in or from its version's record.

policy directory -> the run around it -> its accepted tasks    -+
version -> its lineage, or the run that made it                 +-> training, and the base's
base model -> a version with the same files                    -+
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from espalier.evaluation.contamination import Training
from espalier.evaluation.lineage import (
    LINEAGE_NAME,
    Lineage,
    lineage_of,
    policy_files_digest,
    read_lineage,
)
from espalier.orchestration.finished_run import FinishedRun, open_finished_run
from espalier.orchestration.run_directory import PROFILE_NAME
from espalier.records import (
    ArtifactError,
    DataError,
    ProfileError,
    RegistryError,
    open_artifact,
    read_manifest,
)
from espalier.registry.model import POLICY_DIGEST, ModelVersion, RegisteredModel
from espalier.steps.given_model import CHAMPION_FOLDER

DATA_DIGEST = "espalier.data_digest"
"""Tag of a version with the content digest of its accepted tasks."""
RunBehind = Callable[[ModelVersion], FinishedRun | None]
"""Finds the run that made a version; None where its folder is not on this machine."""
_REGISTERED = "trained_policy"
_MOST_ANCESTORS = 100
"""Longest chain of champions; a longer one is taken for a cycle."""


def lineage_of_run(run: FinishedRun, policy: Path) -> Lineage:
    """Training data of a policy of a run.

    Args:
        run: the run that made the policy.
        policy: folder of the policy's artifact.

    Raises:
        ArtifactError: tasks or policy are not published, or have changed since.
        DataError: a line of the tasks is invalid.
    """
    given = run.profile.policy
    base = run.folder(CHAMPION_FOLDER) if given.start == "champion" else given.model
    # all digests are checked: tasks that were edited later would hide the real training data
    data = open_artifact(run.folder("accepted")).content
    return lineage_of(run.profile, run.folder("accepted"), policy, data, base)


def training_of_directory(policy_dir: Path, model: RegisteredModel | None = None) -> Training:
    """Training data of a model directory, as far as its run or the registry knows it.

    Args:
        policy_dir: any model directory; that of a run is RUN/NAME_policy/policy.
        model: registered model whose versions are compared; None where there is no registry.
    """
    artifact = policy_dir.resolve().parent
    run_dir = artifact.parent
    if policy_dir.resolve().name == "policy" and (run_dir / PROFILE_NAME).is_file():
        try:
            made_from = read_manifest(artifact).inputs.get("accepted")
            lineage = lineage_of_run(open_finished_run(run_dir), artifact)
        except (ArtifactError, DataError, ProfileError) as error:
            return Training.not_known(str(error))
        if made_from not in lineage.training.data:
            return Training.not_known(
                f"the accepted tasks of {run_dir} are not those that {policy_dir} was made from"
            )
        return _whole(lineage, model, None)
    if model is not None:
        digest = policy_files_digest(policy_dir)
        try:
            for version in model.versions():
                if version.tags.get(POLICY_DIGEST) == digest:
                    return training_of_version(model, version, None)
        except RegistryError as error:  # the registry is optional here
            return Training.not_known(f"{policy_dir} lies in no run, and {error}")
    return Training.not_known(f"{policy_dir} lies in no run, and no version has its files")


def training_of_version(
    model: RegisteredModel, version: ModelVersion, run_behind: RunBehind | None
) -> Training:
    """Training data of a registered version, and of the policies that it started from.

    Args:
        model: the registered model.
        version: a version of it.
        run_behind: finds the run of a version that was registered without its lineage.
    """
    lineage = lineage_of_version(model, version, run_behind)
    if lineage is None:
        return Training.not_known(
            f"{version.label} was registered without its training data, and its run is not "
            "on this machine"
        )
    return _whole(lineage, model, run_behind)


def lineage_of_version(
    model: RegisteredModel, version: ModelVersion, run_behind: RunBehind | None
) -> Lineage | None:
    """The lineage in a version's record, or that of its run; None where neither exists."""
    if version.policy_digest and model.has_file(version, LINEAGE_NAME):
        with TemporaryDirectory() as scratch:
            return read_lineage(model.fetch(version, LINEAGE_NAME, Path(scratch)))
    run = run_behind(version) if run_behind else None
    if run is None:
        return None
    try:
        lineage = lineage_of_run(run, run.folder(_REGISTERED))
    except (ArtifactError, DataError):
        return None  # the run is unfinished, emptied or damaged
    return lineage if version.tags.get(DATA_DIGEST) in lineage.training.data else None


def _whole(
    lineage: Lineage, model: RegisteredModel | None, run_behind: RunBehind | None
) -> Training:
    """The training data of a lineage and of all its ancestors."""
    training = lineage.training
    known = {v.policy_digest: v for v in model.versions()} if model is not None else {}
    seen: set[str] = set()
    while lineage.base_name:
        version = known.get(lineage.base)
        if not lineage.base or version is None or lineage.base in seen:
            return training + Training.not_known(
                f"what {lineage.base_name}, from which it started, was trained on"
            )
        seen.add(lineage.base)
        assert model is not None, "a version was found"
        before = lineage_of_version(model, version, run_behind)
        if before is None or len(seen) > _MOST_ANCESTORS:
            return training + Training.not_known(
                f"what {version.label}, from which it started, was trained on"
            )
        lineage = before
        training = training + before.training
    return training
