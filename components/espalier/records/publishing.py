"""Publishing and opening artifact directories: written beside, checked, then renamed once."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from espalier.records.digests import content_digest, file_digest, integrity_digest, payload_files
from espalier.records.errors import ArtifactError
from espalier.records.manifest import MANIFEST_NAME, Manifest, Provenance, describe, read_manifest


@dataclass(slots=True)
class Draft:
    """An artifact being written: fill `path`, count `rows`; the manifest follows on publishing."""

    path: Path
    rows: dict[str, int] = field(default_factory=dict[str, int])
    manifest: Manifest | None = None

    @property
    def published(self) -> Manifest:
        """The manifest, once the `publishing` block has been left without an error."""
        if self.manifest is None:
            raise ArtifactError(f"{self.path} is a draft: it has not been published yet")
        return self.manifest


def work_dir(output_dir: Path) -> Path:
    """Where a stage keeps checkpoints while `output_dir` is not yet published (kept over kills)."""
    return output_dir.with_name(f".{output_dir.name}.work")


@contextmanager
def publishing(output_dir: Path, provenance: Provenance) -> Generator[Draft]:
    """Write an artifact under a temporary name and publish it by one rename.

    The stage's work directory is removed after the rename. An error leaves no trace of the draft
    and never touches what was published before.

    Raises:
        ArtifactError: the disk is full or the folder cannot be written.
    """
    draft_dir = output_dir.with_name(f".{output_dir.name}.draft")
    try:
        shutil.rmtree(draft_dir, ignore_errors=True)
        draft_dir.mkdir(parents=True)
        draft = Draft(draft_dir)
        yield draft
        created = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = describe(draft_dir, provenance, draft.rows, created)
        _write_durably(draft_dir / MANIFEST_NAME, manifest.model_dump_json(indent=2))
        replace_directory(draft_dir, output_dir)
    except OSError as error:
        raise _explained(error, output_dir) from error
    finally:
        # published, it has been renamed and is not there any more
        shutil.rmtree(draft_dir, ignore_errors=True)
    shutil.rmtree(work_dir(output_dir), ignore_errors=True)
    draft.path, draft.manifest = output_dir, manifest


def open_artifact(directory: Path) -> Manifest:
    """Read an artifact's manifest and check every payload file against it.

    Raises:
        ArtifactError: naming the first file that is missing, added, or has other bytes.
    """
    manifest = read_manifest(directory)
    present = {path.as_posix() for path in payload_files(directory)}
    for name, digest in manifest.files.items():
        if name not in present:
            raise ArtifactError(f"{directory / name}: in the manifest, but not there. {_MEND}")
        if file_digest(directory / name) != digest:
            raise ArtifactError(
                f"{directory / name}: its bytes are not those that were published "
                f"(truncated or edited). {_MEND}"
            )
    if extra := sorted(present - manifest.files.keys()):
        raise ArtifactError(f"{directory / extra[0]}: not named in the manifest. {_MEND}")
    if (
        integrity_digest(manifest.files) != manifest.integrity
        or content_digest(manifest.files) != manifest.content
    ):
        raise ArtifactError(f"{directory / MANIFEST_NAME}: edited after publishing. {_MEND}")
    return manifest


_MEND = "Delete the directory and run the same command again: the stage will write it anew."


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def replace_directory(draft_dir: Path, output_dir: Path) -> None:
    """Put a finished draft in its place: one rename, before which a former artifact steps aside."""
    if output_dir.exists():
        former = output_dir.with_name(f".{output_dir.name}.former")
        shutil.rmtree(former, ignore_errors=True)
        output_dir.rename(former)
        try:
            draft_dir.rename(output_dir)
        except OSError:
            former.rename(output_dir)
            raise
        shutil.rmtree(former, ignore_errors=True)
    else:
        draft_dir.rename(output_dir)


def _explained(error: OSError, output_dir: Path) -> ArtifactError:
    remedy = {
        errno.ENOSPC: "The disk is full: free space and run the same command again.",
        errno.EDQUOT: "The disk quota is used up: free space and run the same command again.",
        errno.EACCES: "The folder cannot be written: choose another --out, or mend its rights.",
        errno.EPERM: "The folder cannot be written: choose another --out, or mend its rights.",
        errno.EROFS: "The file system is read-only: choose another --out.",
    }.get(error.errno or 0, "Nothing was published; mend the cause and run the same command again.")
    return ArtifactError(f"{output_dir}: could not be written ({error}). {remedy}")
