"""Keeps outputs and checkpoints in S3 between runs, so that a retry repeats only missing work.

    ARTIFACTS/kept/STAGE/KEY/            the stage's output
    ARTIFACTS/checkpoints/STAGE/KEY/     its newest checkpoint, while it runs

ARTIFACTS is the variable ESPALIER_ARTIFACTS; without it nothing is kept. KEY is a digest of all
that determines the output: stage, settings, content of the inputs, code and packages. Equal keys
mean equal work, so two runs may share a location and both write to it.

A store that is unreachable, refuses, or has damaged files costs time but never changes a result: a
line reports it, and the stage runs. The collector deletes what no run has used for some time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from espalier.chain import Stage
from espalier.config import Profile
from espalier.records import (
    ArtifactError,
    Manifest,
    Provenance,
    StorageError,
    Tracker,
    json_digest,
    package_versions,
    patiently,
    read_manifest,
    work_dir,
)
from espalier.rollout.engines.shared_weights import share_base
from espalier.storage import joined

if TYPE_CHECKING:
    from espalier.storage.expiring import ExpiringLocation

ARTIFACTS_VARIABLE = "ESPALIER_ARTIFACTS"
"""Variable with the address of artifacts, where garbage is collected, like s3://espalier/runs."""
CHECKPOINTS_VARIABLE = "ESPALIER_CHECKPOINTS"
"""Variable with the URI of a stage's newest checkpoint; whoever sets it deletes the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A stage with its settings and the digests of its inputs."""

    stage: Stage
    profile: Profile
    contents: Mapping[str, str]
    """Content digests of the input folders."""
    external: Mapping[str, str]
    """Digests of inputs from outside of the run, by name, from `Stage.external_inputs`."""

    @property
    def inputs(self) -> dict[str, str]:
        """Digests of all inputs, by name."""
        return {**self.contents, **self.external}

    @cached_property
    def key(self) -> str:
        """Digest of all that determines the output.

        It includes code and packages, unlike the check of a run that continues in its own folder:
        there the user wants to continue, but here a newer image would get an older image's output.
        """
        from espalier.stages.register import code_digest

        return json_digest(
            {
                "stage": self.stage.name,
                "settings": self.stage.digest(self.profile),
                "inputs": self.inputs,
                "code": code_digest(self.profile),
                "packages": package_versions(),
            }
        )

    @property
    def provenance(self) -> Provenance:
        """Provenance for the manifest of a checkpoint."""
        return Provenance(
            producer=self.stage.name,
            config_digest=self.stage.digest(self.profile),
            seed=self.profile.seed,
            inputs=self.inputs,
        )

    def is_current(self, made: Manifest) -> bool:
        """Whether an artifact was made by this work."""
        return self.stage.is_current(made, self.profile, self.inputs)


def run_or_fetch(
    stage: Stage,
    profile: Profile,
    inputs: Mapping[str, Path],
    output: Path,
    tracker: Tracker,
    environment: Mapping[str, str],
) -> Manifest:
    """Fetch the stage's output if S3 has it, or else run the stage and keep its output in S3.

    While the stage runs, its newest checkpoint is copied to S3; after a kill the stage continues
    from it, also on an empty disk.

    Args:
        stage: the stage.
        profile: the run's profile.
        inputs: artifact folder -> its path.
        output: path of the artifact that is published.
        tracker: takes settings and figures, and a note on what was kept.
        environment: locations in S3 (`ARTIFACTS_VARIABLE`, `CHECKPOINTS_VARIABLE`), S3's endpoint
            and credentials.

    Raises:
        ArtifactError: an input has no manifest.
        EspalierError: the stage failed. Faults of the store do not raise.
    """
    artifacts, own = environment.get(ARTIFACTS_VARIABLE), environment.get(CHECKPOINTS_VARIABLE)
    if not (artifacts or own) or not stage.is_reusable(profile):
        return stage.run(profile, inputs, output, tracker)
    from espalier.storage.expiring import open_expiring  # minio takes a tenth of a second to import
    from espalier.storage.mirror import FolderMirror

    external = stage.external_inputs(profile)
    contents = {name: read_manifest(path).content for name, path in inputs.items()}
    work = Work(stage=stage, profile=profile, contents=contents, external=external)
    outputs = joined(artifacts, "kept", stage.name, work.key) if artifacts else None
    checkpoints = own or joined(artifacts or "", "checkpoints", stage.name, work.key)
    try:
        kept = open_expiring(outputs, environment) if outputs else None
        mirror = FolderMirror(
            work_dir(output), open_expiring(checkpoints, environment), work.provenance, tracker.note
        )
    except StorageError as error:
        tracker.note(f"nothing is kept for later runs: {error}")
        return stage.run(profile, inputs, output, tracker, external_digests=external)
    manifest = None if kept is None else _fetched(work, kept, output, tracker.note)
    if manifest is None:
        mirror.restore(work.is_current)
        with mirror:
            manifest = stage.run(profile, inputs, output, tracker, external_digests=external)
        if kept is None or not _is_kept(kept, output, tracker.note):
            return manifest
    elif stage.name == "prepare_policy":
        share_base(output / "policy", profile)
    if own is None:
        forget_checkpoint(checkpoints, environment, tracker.note)
    return manifest


def forget_checkpoint(uri: str, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Delete the checkpoint of a stage whose output is published; report a failure in a line.

    Args:
        uri: URI of the checkpoint.
        environment: S3 endpoint and credentials.
        say: takes the line.
    """
    from espalier.storage.expiring import open_expiring

    try:
        open_expiring(uri, environment).forget()
    except StorageError as error:
        say(f"the checkpoint in {uri} is left to the collector: {error}")


def _fetched(
    work: Work, kept: ExpiringLocation, output: Path, say: Callable[[str], None]
) -> Manifest | None:
    """Fetch the output that an earlier run has kept; None if there is no complete one."""
    try:
        manifest = patiently(kept.manifest)
        if manifest is None:
            return None
        if not work.is_current(manifest):
            say(f"{kept.uri} has the output of other work, so the stage runs and replaces it")
            return None
        kept.touch()
        if lost := kept.lost_files(manifest):
            say(f"{kept.uri} has lost {lost[0]}, so the stage runs and restores it")
            return None
        fetched = _undamaged(kept, output)
    except (StorageError, ArtifactError) as error:
        say(f"the output of an earlier run cannot be used, so the stage runs: {error}")
        return None
    say(f"kept from an earlier run ({fetched.created}): {kept.uri}  sha256:{fetched.content[:12]}")
    return fetched


def _undamaged(kept: ExpiringLocation, output: Path) -> Manifest:
    """Fetch the output; delete a damaged one, because listings may not show the damage.

    Raises:
        ArtifactError: the output is damaged.
    """
    try:
        return kept.fetch(output)
    except ArtifactError:
        kept.forget()
        raise


def _is_kept(kept: ExpiringLocation, output: Path, say: Callable[[str], None]) -> bool:
    """Keep the output for later runs; return whether that succeeded."""
    try:
        kept.keep(output)
    except (StorageError, ArtifactError) as error:
        say(f"the output is not kept for later runs: {error}")
        return False
    say(f"kept for later runs: {kept.uri}")
    return True
