"""Exports an artifact's trajectories: read row by row, written to a draft, renamed at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from espalier.environments import family_of
from espalier.environments.family import Family
from espalier.records import (
    ArtifactError,
    EspalierError,
    JsonObject,
    Task,
    ToolSpec,
    open_artifact,
    read_tasks,
    whole_file,
)
from espalier.records.artifact import MANIFEST_NAME
from espalier.records.trajectory import iterate_trajectories
from espalier.steps.profiles import saved_profile
from espalier_interop.exports.atif import atif_rows
from espalier_interop.exports.trl import trl_rows, trl_token_rows
from espalier_interop.exports.turns import ExportedTrajectory, exported_turns
from espalier_interop.exports.verifiers import verifiers_rows

ExportFormat = Literal["verifiers", "trl", "trl-tokens", "atif"]
FORMATS: Mapping[ExportFormat, Callable[[ExportedTrajectory], list[JsonObject]]] = {
    "verifiers": verifiers_rows,
    "trl": trl_rows,
    "trl-tokens": trl_token_rows,
    "atif": atif_rows,
}
_FILE = "trajectories.parquet"
_PROFILE = "profile.json"


class Exported(NamedTuple):
    """The counts of an export."""

    rows: int
    """Number of lines in the file."""
    trajectories: int
    """Number of trajectories that the lines come from."""
    skipped: int
    """Number of trajectories left out: not right although only right ones were requested, or with
    nothing that the format can hold."""


def export(
    source: Path,
    out: Path,
    chosen: ExportFormat,
    *,
    only_right: bool = False,
    with_tools: bool = True,
) -> Exported:
    """Write the trajectories of `source` to the file `out`.

    Args:
        source: artifact folder of a run, or a folder that `espalier record` filled. A run's knows
            its tasks and tools.
        out: file of JSON lines; written with every row, or not touched.
        chosen: name of the format.
        only_right: leave out trajectories that were lost or not right.
        with_tools: write the offered tools; a family that plays on a server must query it.

    Raises:
        ArtifactError: `source` has no trajectories or is damaged, or `out` cannot be written.
    """
    asked = _Source.opened(source)
    if not with_tools:
        asked = asked._replace(family=None)
    written = trajectories = skipped = 0
    with whole_file(out) as draft, draft.open("w", encoding="utf-8") as stream:
        for exported in asked.exported():
            wanted = not only_right or exported.trajectory.is_right
            rows = FORMATS[chosen](exported) if wanted else []
            stream.writelines(_line(source, exported, row) for row in rows)
            written += len(rows)
            trajectories += bool(rows)
            skipped += not rows
    return Exported(written, trajectories, skipped)


def _line(source: Path, exported: ExportedTrajectory, row: JsonObject) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError as error:
        raise ArtifactError(
            f"{source}, row {exported.row}: the trajectory of task {exported.trajectory.task_id} "
            "has a log-prob or reward that is not finite, which JSON cannot hold. Drop the row"
        ) from error


class _Source(NamedTuple):
    """Trajectories, and the tasks and family of the run that they come from."""

    path: Path
    """A parquet file, or a folder of them."""
    tasks: Mapping[str, Task]
    family: Family | None

    @classmethod
    def opened(cls, path: Path) -> _Source:
        if (path / _PROFILE).is_file():
            held = sorted(one.parent.name for one in path.glob(f"*/{_FILE}"))
            raise ArtifactError(
                f"{path}: the folder of a run. Name one of its artifacts: "
                f"{', '.join(held) or 'none has trajectories yet'}"
            )
        if not (path / _FILE).is_file():
            if any(path.glob("trajectories-*.parquet")):
                return cls(path, {}, None)
            raise ArtifactError(
                f"{path}: holds no trajectories. Give RUN/synthetic, RUN/accepted, "
                "RUN/trained_policy, RUN/evaluation, or a folder of `espalier record`"
            )
        if (path / MANIFEST_NAME).is_file():
            open_artifact(path)
        profile = path.parent / _PROFILE
        if not profile.is_file():
            return cls(path / _FILE, {}, None)
        family = family_of(saved_profile(profile.read_text(encoding="utf-8")))
        return cls(path / _FILE, _tasks_beside(path), family)

    def exported(self) -> Iterator[ExportedTrajectory]:
        """Yield the trajectories row by row."""

        @lru_cache(maxsize=1024)  # the trajectories of a group are adjacent
        def tools_of(task_id: str) -> tuple[ToolSpec, ...] | None:
            if self.family is None:
                return None
            task = self.tasks.get(task_id)
            try:
                return self.family.specs_of(task) if task else self.family.specs
            except EspalierError as error:
                raise ArtifactError(
                    f"which tools were offered is unknown: {error}. Start what is missing, or "
                    "export without them: --without-tools"
                ) from error

        for row, trajectory in enumerate(iterate_trajectories(self.path)):
            task = self.tasks.get(trajectory.task_id)
            yield ExportedTrajectory(
                row,
                trajectory,
                exported_turns(trajectory, task),
                task,
                tools_of(trajectory.task_id),
            )


def _tasks_beside(path: Path) -> dict[str, Task]:
    """Return the tasks of the run that an artifact belongs to, by id."""
    for folder in (path, path.parent / "accepted", path.parent / "synthetic"):
        files = sorted((folder / "tasks").glob("*.jsonl"))
        if files:
            return {task.task_id: task for file in files for task in read_tasks(file)}
    return {}
