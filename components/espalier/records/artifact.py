"""Artifact directories: digests of their files, their manifest, and publishing by one rename."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from espalier import __version__
from espalier.records.errors import ArtifactError
from espalier.records.streams import STREAMS_FOLDER

UNTRACKED_BY_CONTENT = frozenset({"manifest.json", "run.json", "timings.parquet"})
"""Files with measured times, hosts and dates: `integrity` covers them, `content` does not; nor does
it cover the folder of streams."""

_CHUNK_BYTES = 1 << 20


def file_digest(path: Path) -> str:
    """Return the SHA-256 of the file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def tree_digest(path: Path) -> str:
    """Return one digest over a file, or over every file below a folder (names and bytes)."""
    if path.is_file():
        return file_digest(path)
    files = sorted(entry for entry in path.rglob("*") if entry.is_file())
    return _tree_digest((entry.relative_to(path).as_posix(), file_digest(entry)) for entry in files)


def json_digest(value: object) -> str:
    """Return the SHA-256 of the value's canonical JSON (sorted keys, no spaces), in hex."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def payload_files(directory: Path) -> list[Path]:
    """Return every file below `directory` except its manifest, as sorted relative paths."""
    found = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return sorted(path for path in found if path.as_posix() != "manifest.json")


def content_digest(file_digests: Mapping[str, str]) -> str:
    """Return one digest over the files that the seed determines (names and bytes)."""
    return _tree_digest(
        (name, digest)
        for name, digest in file_digests.items()
        if Path(name).name not in UNTRACKED_BY_CONTENT and not name.startswith(f"{STREAMS_FOLDER}/")
    )


def integrity_digest(file_digests: Mapping[str, str]) -> str:
    """Return one digest over every payload file."""
    return _tree_digest(file_digests.items())


def _tree_digest(entries: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"{name}\t{digest}\n" for name, digest in sorted(entries))
    # a name in another encoding than UTF-8 goes in with the bytes that it has on disk
    return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()


SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
_RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "bm25s", "pyarrow")


class Manifest(BaseModel, frozen=True, extra="forbid"):
    """One artifact directory, as written by the stage that made it.

    `integrity` covers every payload file and is checked on reading; `content` covers only the files
    that the seed determines, and is compared between runs.
    """

    schema_version: int = Field(default=SCHEMA_VERSION, strict=True)
    producer: str
    config_digest: str
    inputs: dict[str, str] = Field(default_factory=dict)
    """Content digest of each input artifact, by input name."""
    rows: dict[str, int] = Field(default_factory=dict)
    seed: int = Field(strict=True)
    files: dict[str, str]
    """SHA-256 of each file, in hex, by its path below the directory, with "/"."""
    sizes: dict[str, int] = Field(default_factory=dict)
    """Bytes of each file, by which a lost or cut file is noticed without reading it. Empty in
    manifests written before this key existed."""
    integrity: str
    content: str
    packages: dict[str, str]
    created: str
    """UTC, ISO 8601; the only field that differs between two equal runs."""


class Provenance(BaseModel, frozen=True, extra="forbid"):
    """What a stage knows of its artifact before the payload is written."""

    producer: str
    config_digest: str
    seed: int
    inputs: dict[str, str] = Field(default_factory=dict)


def describe(
    directory: Path, provenance: Provenance, rows: Mapping[str, int], created: str
) -> Manifest:
    """Digest every payload file below `directory` and return its manifest."""
    names = [path.as_posix() for path in payload_files(directory)]
    files = {name: file_digest(directory / name) for name in names}
    return Manifest(
        **provenance.model_dump(),
        rows=dict(rows),
        files=files,
        sizes={name: (directory / name).stat().st_size for name in names},
        integrity=integrity_digest(files),
        content=content_digest(files),
        packages=package_versions(),
        created=created,
    )


def read_manifest(directory: Path) -> Manifest:
    """Read `directory`'s manifest without touching its payload.

    Raises:
        ArtifactError: there is no manifest (never published), or it does not parse.
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
            f"first: {error.errors()[0]['msg']}). Delete {directory}, and repeat the "
            "`espalier run` that made it"
        ) from error


def stale_artifacts(manifests: Mapping[str, Manifest]) -> dict[str, str]:
    """Return the artifacts of a run whose inputs have been replaced since they were made.

    A run that is begun anew with other settings, and stopped, leaves such artifacts.

    Args:
        manifests: those of a run, by folder.

    Returns:
        Folder -> the folder of an input that is another one, or is stale itself.
    """
    stale: dict[str, str] = {}
    for _ in manifests:  # as many times as one may depend on another
        for folder, manifest in manifests.items():
            for name, content in manifest.inputs.items():
                if name in manifests and (name in stale or manifests[name].content != content):
                    stale.setdefault(folder, name)
    return stale


def package_versions() -> dict[str, str]:
    """Return the versions of espalier and of the packages that affect an artifact's content."""
    versions = {"espalier": __version__}
    for name in _RECORDED_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions


@dataclass(slots=True)
class Draft:
    """An artifact being written: fill `path` and count `rows`; publishing adds the manifest."""

    path: Path
    rows: dict[str, int] = field(default_factory=dict[str, int])
    manifest: Manifest | None = None

    @property
    def published(self) -> Manifest:
        """Return the manifest, once the `publishing` block has ended without an error."""
        if self.manifest is None:
            raise ArtifactError(f"{self.path} is a draft: it has not been published yet")
        return self.manifest


NEWEST_CHECKPOINT = "latest.pt"
"""File of a stage's work directory from which an ended stage goes on."""


def work_dir(output_dir: Path) -> Path:
    """Return where a stage keeps checkpoints until `output_dir` is published; it survives kills."""
    return output_dir.with_name(f".{output_dir.name}.work")


def run_label(run_dir: Path) -> str:
    """Return a run's name in addresses: that of its folder in a-z, 0-9, `.`, `_` and `-`."""
    return re.sub(r"[^a-z0-9._-]+", "-", run_dir.name.lower()).strip("-.") or "run"


@contextmanager
def publishing(output_dir: Path, provenance: Provenance) -> Generator[Draft]:
    """Write an artifact under a temporary name and publish it by one rename.

    The stage's work directory is removed after the rename. An error leaves no trace of the draft
    and never touches what was published before. Only one process writes an artifact at a time.

    Raises:
        ArtifactError: the disk is full, the folder cannot be written, it holds something else, or
            another process is writing this artifact.
    """
    try:
        with (
            only_writer(output_dir),
            _removed_at_the_end(output_dir.with_name(f".{output_dir.name}.draft")) as draft_dir,
        ):
            draft_dir.mkdir(parents=True)
            draft = Draft(draft_dir)
            yield draft
            created = datetime.now(UTC).isoformat(timespec="seconds")
            manifest = describe(draft_dir, provenance, draft.rows, created)
            _write_durably(draft_dir / MANIFEST_NAME, manifest.model_dump_json(indent=2))
            replace_directory(draft_dir, output_dir)
            shutil.rmtree(work_dir(output_dir), ignore_errors=True)
    except OSError as error:
        raise _explained(error, output_dir) from error
    draft.path, draft.manifest = output_dir, manifest


@contextmanager
def _removed_at_the_end(draft_dir: Path) -> Generator[Path]:
    """Remove what a killed process left there, and what is left when the block ends."""
    shutil.rmtree(draft_dir, ignore_errors=True)
    try:
        yield draft_dir
    finally:
        # published, it has been renamed and is not there any more
        shutil.rmtree(draft_dir, ignore_errors=True)


@contextmanager
def only_writer(output_dir: Path, *, wait_s: float = 0.0) -> Generator[None]:
    """Lock an artifact folder against other writers within the block; readers are not affected.

    What is there must be an artifact, an empty folder or nothing.

    The lock is the kernel's and dies with the process; `.NAME.lock` beside the folder is its file.

    Args:
        output_dir: the artifact's folder, which need not exist.
        wait_s: seconds to wait for another writer.

    Raises:
        ArtifactError: another process is writing there, or what is there is no artifact.
        OSError: its parent folder cannot be written.
    """
    expect_replaceable(output_dir)
    path = output_dir.with_name(f".{output_dir.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + wait_s
    while (descriptor := _locked(path)) is None:
        if time.monotonic() >= end:
            raise ArtifactError(
                f"{output_dir}: another process is writing this artifact. Wait for it, stop it, or "
                "write to another folder"
            )
        time.sleep(_LOCK_POLL_S)
    try:
        _bring_back(output_dir)
        yield
    finally:
        path.unlink(missing_ok=True)  # removed before it is unlocked, which `_locked` relies on
        os.close(descriptor)


_LOCK_POLL_S = 0.05


def _locked(path: Path) -> int | None:
    """Open and lock the file; None if another process holds it, or has just removed it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def open_artifact(directory: Path, *, digest: Callable[[Path], str] = file_digest) -> Manifest:
    """Read an artifact's manifest and check every payload file against it.

    Args:
        directory: directory of the artifact.
        digest: returns the SHA-256 of a file, and is called once for each; it may also copy the
            file, which saves reading it twice.

    Raises:
        ArtifactError: a file is missing, added, or has other bytes; the message names the first.
    """
    manifest = read_manifest(directory)
    present = {path.as_posix() for path in payload_files(directory)}
    for name, expected in manifest.files.items():
        if name not in present:
            raise ArtifactError(f"{directory / name}: in the manifest, but not there. {_MEND}")
        if digest(directory / name) != expected:
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


_MEND = "Delete the folder, and repeat the `espalier run` that made it: its stage writes it anew."


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def replace_directory(draft_dir: Path, output_dir: Path) -> None:
    """Put a finished draft in its place; a former artifact there is deleted afterwards.

    On Linux's own file systems both swap places in one step, so that a reader always sees one of
    them. If the file system cannot swap (NFS), the former one is renamed first; a process killed
    between these two renames leaves it under that name, and `only_writer` restores it.

    Raises:
        ArtifactError: what is there is no artifact.
        OSError: the folder cannot be written.
    """
    expect_replaceable(output_dir)
    former = output_dir.with_name(f".{output_dir.name}.former")
    if not output_dir.exists():
        draft_dir.rename(output_dir)
        return
    shutil.rmtree(former, ignore_errors=True)
    if _exchange(draft_dir, output_dir):
        draft_dir.rename(former)
    else:
        output_dir.rename(former)
        try:
            draft_dir.rename(output_dir)
        except OSError:
            former.rename(output_dir)
            raise
    shutil.rmtree(former, ignore_errors=True)


def expect_replaceable(output_dir: Path) -> None:
    """Raise an error if publishing here would replace anything but an artifact.

    Raises:
        ArtifactError: only an artifact or an empty folder may be replaced.
    """
    if output_dir.name in ("", ".."):
        raise ArtifactError(f"{output_dir}: not the name of a new folder. Choose another --out")
    if not output_dir.is_dir():
        if os.path.lexists(output_dir):
            raise ArtifactError(f"{output_dir}: a file, where a folder is to be. {_OTHER_PLACE}")
        return
    if not any(output_dir.iterdir()):
        return
    try:
        read_manifest(output_dir)
    except ArtifactError as error:
        raise ArtifactError(
            f"{output_dir}: holds files, but is no artifact, so it is not replaced. {_OTHER_PLACE}"
        ) from error


_OTHER_PLACE = "Nothing was written: choose another --out, or move it away."


def _bring_back(output_dir: Path) -> None:
    """Undo the first rename of `replace_directory` if a killed process did not make the second."""
    former = output_dir.with_name(f".{output_dir.name}.former")
    if not output_dir.exists() and (former / MANIFEST_NAME).is_file():
        former.rename(output_dir)


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
"""Flag of renameat2(2)."""
_CANNOT_EXCHANGE = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM})


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; return False if the system or file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if not renameat2(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE):
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(other))


_NOT_WRITABLE = "The folder cannot be written: choose another --out, or change its permissions."


def _explained(error: OSError, output_dir: Path) -> ArtifactError:
    remedy = {
        errno.ENOSPC: "The disk is full: free space and run the same command again.",
        errno.EDQUOT: "The disk quota is used up: free space and run the same command again.",
        errno.EACCES: _NOT_WRITABLE,
        errno.EPERM: _NOT_WRITABLE,
        errno.EROFS: "The file system is read-only: choose another --out.",
    }.get(error.errno or 0, "Nothing was published; fix the cause and run the same command again.")
    return ArtifactError(f"{output_dir}: could not be written ({error}). {remedy}")
