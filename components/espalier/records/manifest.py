"""The manifest: what an artifact directory contains, and what it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from espalier import __version__
from espalier.records.digests import (
    content_digest,
    file_digest,
    integrity_digest,
    payload_files,
)
from espalier.records.errors import ArtifactError

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
_RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "bm25s", "pyarrow")


class Manifest(BaseModel, frozen=True, extra="forbid"):
    """One artifact directory, as written by the stage that made it.

    `integrity` covers every payload file and is checked on reading; `content` covers what is
    deterministic under the seed and is what two runs compare.
    """

    schema_version: int = SCHEMA_VERSION
    producer: str
    config_digest: str
    inputs: dict[str, str] = Field(default_factory=dict)
    """Input name -> content digest of the artifact that was read."""
    rows: dict[str, int] = Field(default_factory=dict)
    seed: int
    files: dict[str, str]
    integrity: str
    content: str
    packages: dict[str, str]
    created: str
    """UTC, ISO 8601; the one field of a manifest that two equal runs do not share."""


class Provenance(BaseModel, frozen=True, extra="forbid"):
    """What a stage knows of its artifact before the payload is written."""

    producer: str
    config_digest: str
    seed: int
    inputs: dict[str, str] = Field(default_factory=dict)


def describe(
    directory: Path, provenance: Provenance, rows: Mapping[str, int], created: str
) -> Manifest:
    """Digest every payload file below `directory` and return the manifest for it."""
    files = {path.as_posix(): file_digest(directory / path) for path in payload_files(directory)}
    return Manifest(
        **provenance.model_dump(),
        rows=dict(rows),
        files=files,
        integrity=integrity_digest(files),
        content=content_digest(files),
        packages=_package_versions(),
        created=created,
    )


def read_manifest(directory: Path) -> Manifest:
    """Read `directory`'s manifest without touching its payload.

    Raises:
        ArtifactError: no manifest (never published), or one that does not parse.
    """
    path = directory / MANIFEST_NAME
    if not path.is_file():
        raise ArtifactError(
            f"{directory}: no {MANIFEST_NAME}, so no stage finished writing here. "
            "Run the stage that makes it again, or point at a published artifact."
        )
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ArtifactError(
            f"{path}: not a manifest of schema {SCHEMA_VERSION} ({error.error_count()} faults, "
            f"first: {error.errors()[0]['msg']}). Delete {directory} and run the stage again."
        ) from error


def _package_versions() -> dict[str, str]:
    versions = {"espalier": __version__}
    for name in _RECORDED_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions
