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
from espalier.records.streams import (
    STREAMS_FOLDER,
    StreamRecord,
    StreamWriter,
    named_streams,
    segments,
)
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
        if streams.is_dir() and is_within(run_dir, streams):
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
    for streams in _folders(run_dir, name):
        if segments(streams, EPISODES):
            return Source(name, streams, is_complete=True)
    for path in _files(run_dir, name):
        if path.is_file() and is_within(run_dir, path):
            return Source(name, _imported(path, cache / name), is_complete=name == DEMONSTRATIONS)
    return None


def _folders(run_dir: Path, name: str) -> list[Path]:
    """Return the folders that may have a source's streams, those that are being written first."""
    if name == TRAIN:
        streams = training_streams(run_dir)
        return [] if streams is None else [streams]
    if name not in POLICIES:
        return []
    evaluation = run_dir / "evaluation"
    found = [evaluation / STREAMS_FOLDER / name]
    if (written := evaluation_streams(run_dir).get(name)) is not None:
        found.insert(0, written)
    return [folder for folder in found if is_within(run_dir, folder)]


def evaluation_streams(run_dir: Path) -> dict[str, Path]:
    """Return the folders with the attempts of an evaluation that runs, by policy."""
    return named_streams(work_dir(run_dir / "evaluation"))


def is_within(folder: Path, path: Path) -> bool:
    """Return whether a path lies in a folder after all links are followed."""
    try:
        return path.resolve(strict=True).is_relative_to(folder.resolve(strict=True))
    except (OSError, RuntimeError):  # it is not there, or its links lead in a circle
        return False


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
