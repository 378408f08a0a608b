"""Object names of an artifact in S3, and the checks of the manifest that lists its files.

    PREFIX/manifest.json      the same bytes as in the folder that was published
    PREFIX/sha256/DIGEST      one object for each content, named by its SHA-256

The content of an object below `sha256/` never changes, so two writers cannot overwrite each other's
files, and the manifest, a single object, decides which artifact is published. Contents lie below
the prefix of their artifact: a copy, a permission, an expiry rule or a deletion of one prefix
covers exactly one artifact, and its garbage is found without looking at any other prefix.

Kubeflow's launcher uploads a folder under the names of its files (PREFIX/NAME), so readers look
there as well. It downloads every object below a prefix; `restore_names` makes such a download the
folder that was published.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from espalier.records import MANIFEST_NAME, ArtifactError, Manifest, replace_directory
from espalier.records.artifact import SCHEMA_VERSION, content_digest, integrity_digest

OBJECTS = "sha256"
"""Folder of the objects below an artifact's prefix."""
COLLECTING = ".espalier-collecting"
"""Object below the prefix while garbage is collected there; it sorts before all others."""
KEPT_MARK = ".espalier-kept"
"""Object below the prefix of an expiring artifact (`expiring`), written again at every use."""
PARTIAL_SUFFIX = ".espalier-partial"
"""Suffix of a partial download; no file of an artifact has it."""
MAX_MANIFEST_BYTES = 64 << 20
"""Room for half a million files. A longer object is no manifest and is not read to its end."""
_MAX_FILE_BYTES = 1 << 50
_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 2048
"""Linux allows 255 bytes in a name and 4096 in a path, some of which the folder needs."""
_SHOWN_CHARACTERS = 80
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def object_name(digest: str) -> str:
    """Name, below the prefix, of the object with this SHA-256."""
    return f"{OBJECTS}/{digest}"


def digest_of_key(key: str) -> str | None:
    """SHA-256 by which an object is named; None if it has another kind of name."""
    folder, _, name = key.rpartition("/")
    named = folder == OBJECTS or folder.endswith(f"/{OBJECTS}")
    return name if named and _DIGEST.fullmatch(name) else None


def parsed_manifest(content: bytes, where: str) -> Manifest:
    """Parse a manifest and check its names, digests and sizes, because `fetch` writes to the names.

    Args:
        content: bytes of the object or file.
        where: its address, for messages.

    Raises:
        ArtifactError: not a manifest, of another schema, edited after publishing, or naming a file
            outside of the artifact, the same file twice, or what no file system can hold.
    """
    manifest = _validated(content, where)
    if manifest.schema_version != SCHEMA_VERSION:
        raise ArtifactError(
            f"{where}: schema {_cut(str(manifest.schema_version))} is unknown to this release, "
            f"which reads {SCHEMA_VERSION}. "
            "Read it with the release of espalier that wrote it"
        )
    for fault in _faults(manifest):
        raise ArtifactError(f"{where}: {fault}")
    if (
        integrity_digest(manifest.files) != manifest.integrity
        or content_digest(manifest.files) != manifest.content
    ):
        raise ArtifactError(f"{where}: edited after publishing")
    return manifest


def _validated(content: bytes, where: str) -> Manifest:
    mend = "Delete the artifact and run the stage that makes it again"
    if len(content) > MAX_MANIFEST_BYTES:
        raise ArtifactError(
            f"{where}: not a manifest (longer than {MAX_MANIFEST_BYTES >> 20} MiB). {mend}"
        )
    try:
        manifest = Manifest.model_validate_json(content)
        # of two equal keys pydantic silently keeps the last
        json.loads(content, object_pairs_hook=_without_repeats)
    except ValidationError as error:
        why = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise ArtifactError(f"{where}: not a manifest ({why}). {mend}") from error
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where}: not a manifest ({error}). {mend}") from error
    return manifest


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:80]!r} is given twice")
    return found


def _faults(manifest: Manifest) -> Iterator[str]:
    """Faults of the manifest's names, digests and sizes, as parts of a message."""
    for name, digest in manifest.files.items():
        if fault := _name_fault(name):
            yield f"names the file {_shown(name)}, {fault}"
        if not _DIGEST.fullmatch(digest):
            yield f"gives the file {_shown(name)} something that is no SHA-256"
    folders = {
        parent.as_posix() for name in manifest.files for parent in PurePosixPath(name).parents
    }
    if both := sorted(folders & manifest.files.keys()):
        yield f"names {_shown(both[0])} as a file and as a folder"
    for name, size in manifest.sizes.items():
        if name not in manifest.files:
            yield f"gives a size to {_shown(name)}, which is not among its files"
        if not 0 <= size <= _MAX_FILE_BYTES:
            yield f"gives {_shown(name)} a size of {_cut(str(size))} bytes"


def _name_fault(name: str) -> str | None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or path.as_posix() != name:
        return "outside of the artifact"
    if _CONTROL.search(name):
        return "with a control character"
    if name == MANIFEST_NAME or path.name.endswith(PARTIAL_SUFFIX):
        return "which is reserved for espalier"
    return None if _is_short(path) else "too long for a file system"


def _shown(name: str) -> str:
    return repr(_cut(name))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _is_short(path: PurePosixPath) -> bool:
    try:
        names = [part.encode() for part in path.parts]
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    whole = sum(map(len, names)) + len(names)
    return whole <= _MAX_PATH_BYTES and all(len(name) <= _MAX_NAME_BYTES for name in names)


def restore_names(directory: Path) -> Path:
    """Rename the files of a downloaded artifact as in its manifest, and return the folder.

    For folders into which every object below a prefix was copied, as Kubeflow's launcher and
    `aws s3 sync` do. A folder whose files have their names is left as it is. The contents are not
    checked here, but when the artifact is opened.

    Raises:
        ArtifactError: the manifest is invalid, or a content that it names is missing.
    """
    path, objects = directory / MANIFEST_NAME, directory / OBJECTS
    if not objects.is_dir() or not path.is_file():
        return directory
    content = path.read_bytes()
    manifest = parsed_manifest(content, str(path))
    contents = manifest.files.values()
    if manifest.files and not any((objects / digest).is_file() for digest in contents):
        return directory  # the files have their names, and `sha256` is a folder of the artifact
    draft = directory.with_name(f".{directory.name}.names")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for name, digest in manifest.files.items():
        _place(directory, name, digest, draft / name)
    (draft / MANIFEST_NAME).write_bytes(content)
    replace_directory(draft, directory)
    return directory


def _place(directory: Path, name: str, digest: str, target: Path) -> None:
    """Link a file, downloaded under its digest or under its name, to `target`."""
    found = [path for path in (directory / OBJECTS / digest, directory / name) if path.is_file()]
    if not found:
        raise ArtifactError(
            f"{directory / name}: in the manifest, but neither it nor {object_name(digest)} was "
            "downloaded. Publish the artifact again from the folder where it was made"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(found[0], target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(found[0], target)
