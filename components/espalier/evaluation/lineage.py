"""Record of a registered version's training data: digests of tasks, no texts."""

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

# not *.gz: MLflow would upload that to S3 with a content encoding, which readers then undo
LINEAGE_NAME = "lineage.packed"
"""Name of the file, beside the policy of a version."""
_MAX_BYTES = 1 << 30
"""Limit of the decompressed file; enough for tens of millions of word runs."""


class Lineage(BaseModel):
    """Training data of one run, and the model it started from."""

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
        """Content of the file `LINEAGE_NAME`; equal lineages have equal bytes."""
        content = _ordered(self.model_dump(mode="json"))
        return gzip.compress(json.dumps(content, sort_keys=True).encode(), mtime=0)


def _ordered(value: JsonValue) -> JsonValue:
    """The same content with sorted lists of strings: sets have no stable order."""
    if isinstance(value, dict):
        return {key: _ordered(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    texts = [one for one in value if isinstance(one, str)]
    if len(texts) == len(value):
        return list[JsonValue](sorted(texts))
    return [_ordered(one) for one in value]


def read_lineage(path: Path) -> Lineage:
    """Read a file that `Lineage.packed` made.

    Raises:
        ArtifactError: the file is damaged, or is not a lineage.
    """
    try:
        with gzip.open(path) as stream:
            content = stream.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ArtifactError(f"{path}: over {_MAX_BYTES >> 20} MiB, too large for a lineage")
        return Lineage.model_validate_json(content)
    except (OSError, EOFError, zlib.error, ValidationError) as error:
        raise ArtifactError(
            f"{path}: not a readable record of the version's training data ({_fault(error)}). The "
            "artifact store was changed or damaged: restore it, or register the policy again"
        ) from error


def _fault(error: Exception) -> str:
    """Message of the first fault only: a damaged file may have a million of them."""
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
    """Lineage of a policy of a run.

    Args:
        profile: profile of the run.
        accepted: artifact with the run's tasks.
        policy: artifact of the policy, with the tasks that were added during training.
        data: content digest of `accepted`.
        base: the model that the run started from; None for the tiny policy.

    Raises:
        ArtifactError: task files of `policy` have changed since it was published.
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
    # kept out of `seen`, which shows what all splits share: these tasks belong to no split
    further = _further_tasks(policy)
    prints = [Prints.of(family, [*seen, *further], run_words)]
    if path := _published(policy, OWN_QUESTIONS):
        questions = (str(text) for _, text in read_json_values(path))
        prints.append(Prints.of_questions(family.name, questions, run_words))
    heldout = read_tasks(folder / "heldout.jsonl")
    return Lineage(
        training=Training(data=(data,), prints=tuple(prints)),
        base=digest,
        base_name=base_name,
        heldout=SuitePrints.of(family, heldout, seen, run_words),
    )


def _further_tasks(policy: Path) -> list[Task]:
    """Relabelled and proposed tasks that a policy was trained on, from its artifact."""
    paths = [path for name in FURTHER_TASKS if (path := _published(policy, name))]
    return [task for path in paths for task in read_tasks(path)]


def _published(policy: Path, name: str) -> Path | None:
    """Path of a file of a policy's artifact, after a check of its digest; None if it has none."""
    published, path = read_manifest(policy).files, policy / name
    if name not in published:
        return None
    if not path.is_file() or file_digest(path) != published[name]:
        raise ArtifactError(
            f"{path}: its bytes are not those that were published, so the policy's training data "
            "is unknown. Restore the file, or train the policy again"
        )
    return path
