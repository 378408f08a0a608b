"""Finding runs, and the state of one from the small files of its folder."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from espalier.chain import CHAIN
from espalier.records import MANIFEST_NAME, ArtifactError, EspalierError, run_label, work_dir
from espalier.storage.location import S3_SCHEME
from espalier.wire.requests import Refusal
from espalier_ui.curves import Curves
from espalier_ui.remote import RemoteRun
from espalier_ui.report import Report
from espalier_ui.run_index import RunIndex
from espalier_ui.sources import POLICIES, evaluation_streams, is_within, training_streams

_FRESH_S = 120.0
"""A run on another machine counts as running while one of its files is younger."""
_LARGEST_JSON = 32 << 20
_PROFILE, _STATE, _TIMINGS = "profile.json", "run.json", "timings.json"


class Run:
    """One run: its folder, its index and its curves."""

    def __init__(
        self, run_id: str, path: Path, cache: Path, remote: RemoteRun | None = None
    ) -> None:
        """Open it; nothing is read yet.

        Args:
            run_id: its name in addresses.
            path: its folder.
            cache: folder for its index.
            remote: what fills the folder from S3; None where it is the run itself.
        """
        self.id, self.path = run_id, path
        self.place = str(path) if remote is None else remote.uri
        """The folder, or the S3 address, that the user gave."""
        self.index = RunIndex(path, cache, remote)
        self.curves = Curves(path)
        self.report = Report(path, self.place)

    def json(self, name: str) -> dict[str, Any]:
        """Return a JSON object of the run; {} if it is missing or damaged."""
        path = self.path / name
        try:
            if path.stat().st_size > _LARGEST_JSON or not is_within(self.path, path):
                return {}
            found = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def updated(self) -> float:
        """Time of the newest change, in seconds since 1970."""
        paths = [self.path / name for name in (_PROFILE, _STATE, _TIMINGS)]
        streams = training_streams(self.path)
        for folder in (streams, *evaluation_streams(self.path).values()):
            if folder is not None and folder.is_dir():
                paths += folder.iterdir()
        return max(map(_modified, paths), default=0.0)

    def stages(self) -> list[dict[str, Any]]:
        """Return what is known of each stage of the chain, in its order."""
        timings, state = self.json(_TIMINGS), self.json(_STATE)
        begun = state.get("attempts")
        begun = begun if isinstance(begun, dict) else {}
        found: list[dict[str, Any]] = []
        for stage in CHAIN:
            used = timings.get(stage.name)
            used = used if isinstance(used, dict) else {}
            is_published = (self.path / stage.output / MANIFEST_NAME).is_file()
            is_begun = stage.name in begun or work_dir(self.path / stage.output).is_dir()
            found.append(
                {
                    "name": stage.name,
                    "state": "running" if is_begun else "finished" if is_published else "missing",
                    "seconds": _number(used.get("seconds")),
                    "peak_rss_mb": _number(used.get("peak_rss_mb")),
                    "summary": stage.summary,
                }
            )
        return found

    def overview(self) -> dict[str, Any]:
        """Return the object of `GET /api/runs`."""
        profile, stages = self.json(_PROFILE), self.stages()
        updated = self.updated
        state = self._state(stages, updated)
        done = [stage["name"] for stage in stages if stage["state"] == "finished"]
        active = [stage["name"] for stage in stages if stage["state"] == "running"]
        newest = self.curves.newest()
        evaluated = self.json("evaluation/results.json").get("eval")
        evaluated = evaluated if isinstance(evaluated, dict) else {}
        return {
            "id": self.id,
            "name": self.path.name,
            "path": self.place,
            "family": _text(profile, "environment", "name"),
            "model": _model(profile),
            "state": state,
            "started": self._started(),
            "updated": updated,
            "stage": active[-1] if active else done[-1] if done else None,
            "step": newest.get("step"),
            "steps": _inside(profile, "training", "steps"),
            "figures": {name: newest.get(name) for name in ("reward", "pass_rate", "dev_em")},
            "heldout": {policy: _number(_inside(evaluated, policy, "em")) for policy in POLICIES},
            "notices": self.curves.notice_counts(),
        }

    def _state(self, stages: Sequence[Mapping[str, Any]], updated: float) -> str:
        is_active = any(stage["state"] == "running" for stage in stages)
        is_done = stages[-1]["state"] == "finished" or (self.path / "summary.json").is_file()
        if is_done and not is_active:
            return "finished"
        if self._is_held() or time.time() - updated < _FRESH_S:
            return "running"
        return "stopped"

    def _is_held(self) -> bool:
        """Whether the process in the run's lock file is alive on this machine.

        The lock is only read: taking it would refuse a run that begins at this moment.
        """
        try:
            number = int((self.path / ".lock").read_text(encoding="ascii").strip())
            return b"espalier" in Path(f"/proc/{number}/cmdline").read_bytes()
        except (OSError, ValueError):
            return False

    def _started(self) -> float | None:
        said = self.json(_STATE).get("started")
        try:
            return datetime.fromisoformat(said).timestamp() if isinstance(said, str) else None
        except ValueError:
            return None


class NoRunError(EspalierError):
    """A given folder is no run, and has none in it."""


class RunCatalog:
    """The runs below the given folders, by their ids."""

    def __init__(self, roots: Sequence[Path | str], cache: Path) -> None:
        """Look for runs.

        Args:
            roots: folders of runs, or folders with such folders in them; s3://bucket/prefix of one
                run.
            cache: the viewer's folder for indexes.

        Raises:
            NoRunError: one of them is no run, and has none in it.
            StorageError: S3 refuses or is unreachable.
        """
        self._cache = cache
        self._lock = threading.Lock()
        self._runs: dict[Path, Run] = {}
        self._remotes: dict[Path, RemoteRun] = {}
        self._roots = [self._folder_of(str(root)) for root in roots]
        for root in self._roots:
            if not root.is_dir():
                raise NoRunError(
                    f"{root}: no such folder. Give one that `espalier run --out` fills, a folder "
                    "of such folders, or s3://BUCKET/PREFIX of a run"
                )
            remote = self._remotes.get(root.resolve())
            if remote is not None and not is_run(root):
                raise NoRunError(
                    f"{remote.uri}: no run there (no {_PROFILE}, and no artifact of a stage below "
                    "it). Give the prefix below which the artifacts of one run lie"
                )
            if not is_run(root) and not _runs_below(root):
                raise NoRunError(
                    f"{root}: no run there (no {_PROFILE} and no artifact, in it or one level "
                    "below). Give a folder that `espalier run --out` fills"
                )

    def _folder_of(self, root: str) -> Path:
        """Return a folder; for a run in S3 that which is filled from there."""
        if not root.startswith(S3_SCHEME):
            return Path(root)
        digest = hashlib.sha256(root.encode(errors="replace")).hexdigest()[:16]
        remote = RemoteRun(root.rstrip("/"), self._cache / f"s3-{digest}", os.environ)
        remote.refresh()
        self._remotes[remote.folder.resolve()] = remote
        return remote.folder

    def all(self) -> list[Run]:
        """Return all runs, also those that began since the last look; newest first."""
        paths = [
            path.resolve()
            for root in self._roots
            for path in ([root] if is_run(root) else _runs_below(root))
        ]
        with self._lock:
            taken = {run.id for run in self._runs.values()}
            for path in paths:
                if path not in self._runs:
                    run_id = _free_id(path, taken)
                    taken.add(run_id)
                    digest = hashlib.sha256(str(path).encode(errors="replace")).hexdigest()[:16]
                    cache, remote = self._cache / digest, self._remotes.get(path)
                    self._runs[path] = Run(run_id, path, cache, remote)
            found = [self._runs[path] for path in dict.fromkeys(paths)]
        return sorted(found, key=lambda run: run.updated, reverse=True)

    def get(self, run_id: str) -> Run:
        """Return a run.

        Raises:
            Refusal: there is none of this id (any more).
        """
        with self._lock:
            known = next((run for run in self._runs.values() if run.id == run_id), None)
        if known is not None and is_run(known.path):
            return known
        found = next((run for run in self.all() if run.id == run_id), None)
        if found is None:
            raise Refusal(404, f"{run_id[:100]}: no such run here; see /api/runs", code="no_run")
        return found

    def close(self) -> None:
        """End all threads."""
        for run in self._runs.values():
            run.index.close()


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run: it has a profile, or an artifact."""
    return (folder / _PROFILE).is_file() or any(
        (folder / stage.output / MANIFEST_NAME).is_file() for stage in CHAIN
    )


def _runs_below(root: Path) -> list[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.is_dir() and is_run(path))
    except OSError as error:
        raise ArtifactError(f"{root}: cannot be read ({error.strerror})") from error


def _free_id(path: Path, taken: set[str]) -> str:
    name = run_label(path)
    numbered = (name if number == 1 else f"{name}-{number}" for number in range(1, len(taken) + 2))
    return next(one for one in numbered if one not in taken)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _inside(values: object, *names: str) -> Any:  # noqa: ANN401 (whatever JSON holds)
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _text(profile: Mapping[str, Any], *names: str) -> str | None:
    found = _inside(profile, *names)
    return found if isinstance(found, str) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None


def _model(profile: Mapping[str, Any]) -> str | None:
    given = _inside(profile, "policy", "model")
    if isinstance(given, str):
        return Path(given).name
    return "tiny" if profile else None
