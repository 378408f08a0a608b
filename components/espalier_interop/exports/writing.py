"""Exports an artifact's trajectories: read row by row, written to a draft, renamed at the end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
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
from espalier.records.episodes import EPISODES, EpisodePlace, read_episodes
from espalier.records.streams import STREAMS_FOLDER, segments
from espalier.records.trajectory import Trajectory, iterate_trajectories
from espalier.steps.profiles import saved_profile
from espalier_interop.exports.atif import atif_rows
from espalier_interop.exports.inspect_log import InspectLog
from espalier_interop.exports.otlp import otlp_rows
from espalier_interop.exports.trl import trl_rows, trl_token_rows
from espalier_interop.exports.turns import ExportedTrajectory, as_json, exported_turns
from espalier_interop.exports.verifiers import verifiers_rows

ExportFormat = Literal["verifiers", "trl", "trl-tokens", "atif", "otlp", "inspect"]
ROWS: Mapping[str, Callable[[ExportedTrajectory], list[JsonObject]]] = {
    "verifiers": verifiers_rows,
    "trl": trl_rows,
    "trl-tokens": trl_token_rows,
    "atif": atif_rows,
    "otlp": otlp_rows,
}
"""Formats of JSON lines: the lines of a trajectory."""
_FILE = "trajectories.parquet"
_PROFILE = "profile.json"
_MOST_FOLDERS = 3
"""Folders between a run and the stream of a policy in it: evaluation/streams/trained."""


class Exported(NamedTuple):
    """The counts of an export."""

    rows: int
    """Number of lines or samples in the file."""
    trajectories: int
    """Number of trajectories that they come from."""
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
        source: artifact folder of a run, a folder with a stream of attempts in a run, or a folder
            that `espalier record` filled. A run's knows its tasks and tools.
        out: file of JSON lines, or a log of Inspect; written with every row, or not touched.
        chosen: name of the format.
        only_right: leave out trajectories that were lost or not right.
        with_tools: write the offered tools; a family that plays on a server must query it.

    Raises:
        ArtifactError: `source` has no trajectories or is damaged, or `out` cannot be written.
    """
    asked = _Source.opened(source)
    if not with_tools:
        asked = asked._replace(family=None)
    if chosen == "inspect" and out.suffix != ".eval":
        raise ArtifactError(f"{out}: `inspect view` reads a log by its ending; name it NAME.eval")
    written = trajectories = skipped = 0
    with whole_file(out) as draft, _writer(chosen, draft) as write:
        for exported in asked.exported():
            wanted = not only_right or exported.trajectory.is_right
            count = write(exported) if wanted else 0
            written += count
            trajectories += bool(count)
            skipped += not count
    return Exported(written, trajectories, skipped)


@contextmanager
def _writer(chosen: ExportFormat, draft: Path) -> Generator[Callable[[ExportedTrajectory], int]]:
    """Yield what writes a trajectory and returns its number of rows."""
    if chosen == "inspect":
        with InspectLog(draft) as log:
            yield log.add
        return
    rows_of = ROWS[chosen]
    with draft.open("w", encoding="utf-8") as stream:

        def write(exported: ExportedTrajectory) -> int:
            rows = [as_json(exported, row) for row in rows_of(exported)]
            stream.writelines(f"{row}\n" for row in rows)
            return len(rows)

        yield write


class _Source(NamedTuple):
    """Trajectories, and the tasks and family of the run that they come from."""

    path: Path
    """A parquet file, a folder of them, or a folder with a stream."""
    tasks: Mapping[str, Task]
    family: Family | None
    origin: str

    @classmethod
    def opened(cls, path: Path) -> _Source:
        if (path / _PROFILE).is_file():
            files = [
                *path.glob(f"*/{_FILE}"),
                *path.glob(f"*/{STREAMS_FOLDER}/**/{EPISODES}-*.jsonl"),
            ]
            held = sorted({file.parent.relative_to(path).as_posix() for file in files})
            raise ArtifactError(
                f"{path}: the folder of a run. Name one of its artifacts: "
                f"{', '.join(held) or 'none has trajectories yet'}"
            )
        found = path / _FILE
        if segments(path, EPISODES):
            found = path
        elif not found.is_file():
            if any(path.glob("trajectories-*.parquet")):
                return cls(path, {}, None, path.name)
            raise ArtifactError(
                f"{path}: holds no trajectories. Give RUN/synthetic, RUN/accepted, "
                "RUN/trained_policy, RUN/evaluation, RUN/evaluation/streams/trained, or a folder "
                "of `espalier record`"
            )
        if (path / MANIFEST_NAME).is_file():
            open_artifact(path)
        whole = path.resolve()
        for run in whole.parents[:_MOST_FOLDERS]:
            if (run / _PROFILE).is_file():
                family = family_of(saved_profile((run / _PROFILE).read_text(encoding="utf-8")))
                origin = whole.relative_to(run.parent).as_posix()
                return cls(found, _tasks_of(run, path), family, origin)
        return cls(found, {}, None, path.name)

    def episodes(self) -> Iterator[tuple[EpisodePlace | None, Trajectory]]:
        """Yield trajectories, each with its place where that is known."""
        if segments(self.path, EPISODES):
            yield from read_episodes(self.path)
        else:
            for trajectory in iterate_trajectories(self.path):
                yield None, trajectory

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

        for row, (place, trajectory) in enumerate(self.episodes()):
            task = self.tasks.get(trajectory.task_id)
            yield ExportedTrajectory(
                row,
                trajectory,
                exported_turns(trajectory, task),
                task,
                tools_of(trajectory.task_id),
                place,
                self.origin,
            )


def _tasks_of(run: Path, artifact: Path) -> dict[str, Task]:
    """Return the tasks that a run's artifact is about, by id."""
    for folder in (artifact, run / "accepted", run / "synthetic"):
        files = sorted((folder / "tasks").glob("*.jsonl"))
        if files:
            return {task.task_id: task for file in files for task in read_tasks(file)}
    return {}
