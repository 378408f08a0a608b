"""An artifact in a folder of this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from espalier.records import (
    MANIFEST_NAME,
    Manifest,
    open_artifact,
    read_manifest,
    replace_directory,
)
from espalier.storage.writing import writing


class LocalPlace:
    """A folder; fetching and publishing copy, unless both ends are the same folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.uri = str(folder)

    def manifest(self) -> Manifest | None:
        """The manifest of what is published here, or None where nothing is whole.

        Raises:
            ArtifactError: it is not a manifest.
        """
        if not (self._folder / MANIFEST_NAME).is_file():
            return None
        return read_manifest(self._folder)

    def fetch(self, destination: Path) -> Manifest:
        """Copy the artifact to the folder `destination`.

        Raises:
            ArtifactError: nothing is published here, or a file has other bytes.
            StorageError: `destination` cannot be written.
        """
        open_artifact(self._folder)
        return _copied(self._folder, destination)

    def publish(self, directory: Path) -> Manifest:
        """Copy a published artifact here, in the place of what was here before.

        Raises:
            ArtifactError: `directory` is no whole artifact.
            StorageError: the folder cannot be written.
        """
        open_artifact(directory)
        return _copied(directory, self._folder)

    def write(self, name: str, content: bytes) -> None:
        """Write one small file, by one rename.

        Raises:
            StorageError: the folder cannot be written.
        """
        path = self._folder / name
        draft = path.with_name(f".{path.name}.draft")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(content)
            draft.replace(path)


def _copied(source: Path, destination: Path) -> Manifest:
    if destination.exists() and os.path.samefile(source, destination):
        return read_manifest(source)
    draft = destination.with_name(f".{destination.name}.fetch")
    with writing(destination):
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(source, draft)
        manifest = open_artifact(draft)
        replace_directory(draft, destination)
    return manifest
