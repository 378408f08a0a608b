"""The sources of a run's attempts: folders of streams, also of runs that wrote none.

A run from before there were streams has a file of trajectories instead. It is written once as a
stream into the viewer's cache, so that everything else reads streams alone.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from espalier.records import ArtifactError, work_dir
from espalier.records.episodes import EPISODES, EpisodePlace, episode_record
from espalier.records.streams import STREAMS_FOLDER, StreamRecord, StreamWriter, segments
from espalier.records.trajectory import Trajectory, iterate_trajectories

TRAIN = "train"
POLICIES = ("untrained", "warm_start", "trained")
DEMONSTRATIONS = "demonstrations"
SOURCES = (TRAIN, *POLICIES, DEMONSTRATIONS)
"""In the order in which they are shown."""
_TRAJECTORIES = "trajectories.parquet"
_BATCH = 256


class Source(NamedTuple):
    """A folder with a stream of attempts."""

    name: str
    folder: Path
    is_complete: bool
    """Whether it has all attempts, and not those of the last step or a sample of them."""


def training_streams(run_dir: Path) -> Path | None:
    """Return the folder with the streams of the training, which may still run; None without one."""
    trained = run_dir / "trained_policy"
    for folder in (work_dir(trained), trained):
        streams = folder / STREAMS_FOLDER
        if streams.is_dir():
            return streams
    return None


def sources_of(run_dir: Path, cache: Path) -> list[Source]:
    """Return the sources of a run that have an attempt.

    Args:
        run_dir: the run's folder.
        cache: the viewer's folder for this run, for streams made of older files.
    """
    found = [_source(run_dir, cache, name) for name in SOURCES]
    return [source for source in found if source and segments(source.folder, EPISODES)]


def _source(run_dir: Path, cache: Path, name: str) -> Source | None:
    streams = training_streams(run_dir) if name == TRAIN else None
    if name in POLICIES:
        streams = run_dir / "evaluation" / STREAMS_FOLDER / name
    if streams is not None and segments(streams, EPISODES):
        return Source(name, streams, is_complete=True)
    for path in _files(run_dir, name):
        if path.is_file():
            return Source(name, _imported(path, cache / name), is_complete=name == DEMONSTRATIONS)
    return None


def _files(run_dir: Path, name: str) -> list[Path]:
    """Return the files with a source's trajectories, the best first."""
    trained = run_dir / "trained_policy"
    match name:
        case "train":
            return [work_dir(trained) / "last_step.parquet", trained / _TRAJECTORIES]
        case "trained":
            return [run_dir / "evaluation" / _TRAJECTORIES]
        case "demonstrations":
            return [run_dir / folder / _TRAJECTORIES for folder in ("accepted", "synthetic")]
        case _:
            return []


def _imported(path: Path, folder: Path) -> Path:
    """Return a folder with the file's trajectories as a stream; made anew if the file changed."""
    status = path.stat()
    made = folder / f"{status.st_mtime_ns}-{status.st_size}"
    if made.is_dir():
        return made
    shutil.rmtree(folder, ignore_errors=True)
    draft = folder / "draft"
    writer = StreamWriter(draft, EPISODES)
    writer.keep_until(0)
    is_training, samples = folder.name == TRAIN, Counter[tuple[int, str]]()
    try:
        trajectories = iterate_trajectories(path)
        while batch := list(islice(trajectories, _BATCH)):
            writer.append(list(_records(batch, samples, is_training=is_training)))
    except ArtifactError:
        pass  # a file that is damaged, or replaced meanwhile, shows what could be read
    writer.finish_segment()
    draft.rename(made)
    return made


def _records(
    batch: Iterable[Trajectory], samples: Counter[tuple[int, str]], *, is_training: bool
) -> Iterable[StreamRecord]:
    for trajectory in batch:
        step = trajectory.policy_version + 1 if is_training else 0
        key = (step, trajectory.task_id)
        yield episode_record(trajectory, EpisodePlace(step, samples[key], None))
        samples[key] += 1
