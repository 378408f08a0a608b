"""The report of a run: its sections, made again when the run has published something."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from espalier.records import ArtifactError
from espalier.reporting import open_run, report_sections
from espalier.reporting.run_directory import RunDirectory
from espalier_ui.sources import is_within

_ROOT_FILES = ("profile.json", "timings.json")


class Report:
    """The sections of one run; reading is safe from every thread."""

    def __init__(self, run_dir: Path, place: str) -> None:
        """Name the run; nothing is read yet.

        Args:
            run_dir: its folder.
            place: where a user knows it to be: this folder, or an address in S3.
        """
        self._run_dir, self._place = run_dir, place
        self._lock = threading.Lock()
        self._seen: object = None
        self._sections: list[dict[str, Any]] = []

    def sections(self) -> list[dict[str, Any]]:
        """Return the sections of `espalier.reporting.report_sections` as plain data.

        Raises:
            ArtifactError: a file of the run is missing, damaged or of another shape, or lies
                outside of its folder.
        """
        with self._lock:
            run = open_run(self._run_dir)
            seen = [
                (path, found.st_mtime_ns, found.st_size)
                for path, found in ((path, path.stat()) for path in self._parts(run))
            ]
            if seen != self._seen:
                self._sections, self._seen = self._made(run), seen
            return self._sections

    def _made(self, run: RunDirectory) -> list[dict[str, Any]]:
        try:
            return [asdict(section) for section in report_sections(run)]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ArtifactError(
                f"{self._place}: a file that the report is made of has another shape than stages "
                f"write ({type(error).__name__}: {error}). Run the stage that wrote it again"
            ) from error

    def _parts(self, run: RunDirectory) -> Iterator[Path]:
        """Yield the files by which a change is seen; links out of the run are not followed."""
        published = [*run.artifacts.values()]
        published += [run.failed_validation] if run.failed_validation else []
        yield from (path for name in _ROOT_FILES if (path := self._within(name)).is_file())
        for artifact in published:
            folder = artifact.path.name
            for name in artifact.manifest.files:
                self._within(f"{folder}/{name}")
            yield self._within(f"{folder}/manifest.json")

    def _within(self, name: str) -> Path:
        path = self._run_dir / name
        if path.exists() and not is_within(self._run_dir, path):
            raise ArtifactError(f"{self._place}: {name} is a link out of the run's folder")
        return path
