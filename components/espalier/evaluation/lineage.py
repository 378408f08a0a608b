"""What a version of the registry says of its training: digests of tasks, no texts."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from espalier.chain import FURTHER_TASKS, OWN_QUESTIONS
from espalier.config import Profile
from espalier.environments import family_of
from espalier.evaluation.contamination import Prints, SuitePrints, Training
from espalier.records import (
    ArtifactError,
    Task,
    file_digest,
    json_digest,
    read_manifest,
    read_tasks,
)
from espalier.records.task import read_json_values

LINEAGE_NAME = "lineage.packed"  # as *.gz, MLflow sends it to S3 as an encoding that readers undo
"""File of a version beside its policy."""
_MAX_BYTES = 1 << 30
"""Largest size of the decompressed file: some tens of millions of runs."""


class Lineage(BaseModel):
    """What one run trained a policy on, and what it started from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    training: Training
    base: str = ""
    """Digest of the files of the model that it started from; empty for a tiny policy, or where
    they could not be read."""
    base_name: str = ""
    """What the profile calls that model; empty for a tiny policy."""
    heldout: SuitePrints = SuitePrints(tasks={})
    """The run's own held-out tasks."""

    def packed(self) -> bytes:
        """As the bytes of `LINEAGE_NAME`; equal lineages have equal bytes."""
        content = _ordered(self.model_dump(mode="json"))
        return gzip.compress(json.dumps(content, sort_keys=True).encode(), mtime=0)


def _ordered(value: JsonValue) -> JsonValue:
    """The same content, with the members of sets in order."""
    if isinstance(value, dict):
        return {key: _ordered(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    texts = [one for one in value if isinstance(one, str)]
    if len(texts) == len(value):
        return list[JsonValue](sorted(texts))
    return [_ordered(one) for one in value]


def read_lineage(path: Path) -> Lineage:
    """Read what `Lineage.packed` made.

    Raises:
        ArtifactError: it is damaged, or no lineage.
    """
    try:
        with gzip.open(path) as stream:
            content = stream.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ArtifactError(f"{path}: more than {_MAX_BYTES >> 20} MiB, and so no lineage")
        return Lineage.model_validate_json(content)
    except (OSError, EOFError, zlib.error, ValidationError) as error:
        raise ArtifactError(
            f"{path}: does not say what the version was trained on ({_fault(error)}). The artifact "
            "store was changed or damaged: restore it, or register the policy again"
        ) from error


def _fault(error: Exception) -> str:
    """The first fault alone: a damaged file of a million digests may have as many."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        return first["msg"]
    return str(error)


def policy_files_digest(policy_dir: Path) -> str:
    """Digest of a model directory, equal to the policy digest of a version with these files."""
    files = {
        path.relative_to(policy_dir).as_posix(): file_digest(path)
        for path in sorted(policy_dir.rglob("*"))
        if path.is_file()
    }
    return json_digest(files)


def lineage_of(
    profile: Profile, accepted: Path, policy: Path, data: str, base: Path | None
) -> Lineage:
    """What a policy of a run was trained on.

    Args:
        profile: of the run.
        accepted: artifact with its tasks.
        policy: its own artifact, which has the tasks that came up in training.
        data: content digest of `accepted`.
        base: the model that the run started from; None for the tiny policy.

    Raises:
        ArtifactError: tasks of `policy` were changed since it was published.
    """
    base_name = str(base) if base is not None else ""
    digest = policy_files_digest(base) if base is not None and base.is_dir() else ""
    folder = accepted / "tasks"
    if not (folder / "train.jsonl").is_file():
        training = Training(data=(data,), unknown=(f"{accepted} holds no training tasks",))
        return Lineage(training=training, base=digest, base_name=base_name)
    family = family_of(profile)
    run_words = profile.evaluation.contamination.run_words
    seen = [
        task
        for split in ("train", "dev")
        for task in read_tasks(folder / f"{split}.jsonl")
    ]  # fmt: skip
    # not among those that say what all splits share: nobody dealt them to a split
    further = _further_tasks(policy)
    prints = [Prints.of(family, [*seen, *further], run_words)]
    if path := _published(policy, OWN_QUESTIONS):
        asked = (str(text) for _, text in read_json_values(path))
        prints.append(Prints.of_questions(family.name, asked, run_words))
    heldout = read_tasks(folder / "heldout.jsonl")
    return Lineage(
        training=Training(data=(data,), prints=tuple(prints)),
        base=digest,
        base_name=base_name,
        heldout=SuitePrints.of(family, heldout, seen, run_words),
    )


def _further_tasks(policy: Path) -> list[Task]:
    """Relabelled and proposed tasks that a policy was trained on, as they were published."""
    paths = [path for name in FURTHER_TASKS if (path := _published(policy, name))]
    return [task for path in paths for task in read_tasks(path)]


def _published(policy: Path, name: str) -> Path | None:
    """A file of a policy's artifact, with the bytes that were published; None if it has none."""
    published, path = read_manifest(policy).files, policy / name
    if name not in published:
        return None
    if not path.is_file() or file_digest(path) != published[name]:
        raise ArtifactError(
            f"{path}: its bytes are not those that were published, so it cannot be said what the "
            "policy was trained on. Restore the file, or train it again"
        )
    return path
