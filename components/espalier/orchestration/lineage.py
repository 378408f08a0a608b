"""What a policy was trained on: by the run that its folder lies in, or by its version's record.

policy directory -> the run around it -> its accepted tasks    -+
version -> its lineage, or the run that made it                 +-> training, and that of its base
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
"""Tag of a version: content digest of the accepted tasks."""
RunBehind = Callable[[ModelVersion], FinishedRun | None]
"""The folder of the run that made a version, where it is on this machine."""
_REGISTERED = "trained_policy"
_MOST_ANCESTORS = 100
"""A chain of champions; one that is longer goes round in circles."""


def lineage_of_run(run: FinishedRun, policy: Path) -> Lineage:
    """What a policy of a run was trained on.

    Args:
        run: that made it.
        policy: its artifact.

    Raises:
        ArtifactError: tasks or policy are not published, or were changed since.
        DataError: a line of them is no task.
    """
    given = run.profile.policy
    base = run.folder(CHAMPION_FOLDER) if given.start == "champion" else given.model
    # every byte is compared: tasks that were edited afterwards would hide what it trained on
    data = open_artifact(run.folder("accepted")).content
    return lineage_of(run.profile, run.folder("accepted"), policy, data, base)


def training_of_directory(policy_dir: Path, model: RegisteredModel | None = None) -> Training:
    """What a model directory was trained on, as far as what lies around it says.

    Args:
        policy_dir: any model directory; one of a run is RUN/NAME_policy/policy.
        model: whose versions are known; None where there is no registry.
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
        except RegistryError as error:  # it only says more
            return Training.not_known(f"{policy_dir} lies in no run, and {error}")
    return Training.not_known(f"{policy_dir} lies in no run, and no version has its files")


def training_of_version(
    model: RegisteredModel, version: ModelVersion, run_behind: RunBehind | None
) -> Training:
    """What a registered version was trained on, and what it started from was.

    Args:
        model: that it is a version of.
        version: any.
        run_behind: used where it was registered without its lineage.
    """
    lineage = lineage_of_version(model, version, run_behind)
    if lineage is None:
        return Training.not_known(
            f"{version.label} was registered without what it was trained on, and its run is not "
            "on this machine"
        )
    return _whole(lineage, model, run_behind)


def lineage_of_version(
    model: RegisteredModel, version: ModelVersion, run_behind: RunBehind | None
) -> Lineage | None:
    """The record of a version, or that of its run; None where neither is to be had."""
    if version.policy_digest and model.has_file(version, LINEAGE_NAME):
        with TemporaryDirectory() as scratch:
            return read_lineage(model.fetch(version, LINEAGE_NAME, Path(scratch)))
    run = run_behind(version) if run_behind else None
    if run is None:
        return None
    try:
        lineage = lineage_of_run(run, run.folder(_REGISTERED))
    except (ArtifactError, DataError):
        return None  # that run has not come so far, was emptied, or was damaged
    return lineage if version.tags.get(DATA_DIGEST) in lineage.training.data else None


def _whole(
    lineage: Lineage, model: RegisteredModel | None, run_behind: RunBehind | None
) -> Training:
    """The training of a lineage, and of everything that it started from."""
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
