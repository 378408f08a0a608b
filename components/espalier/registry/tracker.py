"""A stage's listener that writes to one MLflow run; figures are sent in batches."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from espalier.records import NullTracker, Progress, RegistryError
from espalier.registry.connection import reaching
from espalier.registry.episode_traces import MAX_TRACES, count_traces, log_traces

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

STAGE_TAG = "espalier.stage"
PARENT_TAG = "mlflow.parentRunId"
SUPERSEDED_TAG = "espalier.superseded_by"
_NOTE_TAG = "mlflow.note.content"

_BATCH = 200
"""Figures that are sent at once; MLflow takes at most 1000."""
_FLUSH_SECONDS = 5.0
"""A batch into sqlite takes 5-20 ms: at this interval well under 1 % of a training run."""
_RETRY_SECONDS = 30.0
_RETRY_PER_SECOND = 10.0
"""A server that takes long to fail is asked seldom: training must not wait for it."""
_MAX_PARAMS = 100
_MAX_VALUE_CHARS = 6000
_MAX_NOTE_CHARS = 4000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHandle:
    """One run, and the client that reaches it."""

    client: MlflowClient
    uri: str
    run_id: str
    experiment_id: str
    parent_run_id: str | None = None


@dataclass(frozen=True, slots=True)
class DatasetUse:
    """Data that a run read."""

    name: str
    digest: str
    """Content digest, SHA-256; MLflow takes the first half as its own."""
    source: str
    """Where it was read from: a folder, or another dataset's name."""
    rows: Mapping[str, int]
    context: str
    """What it was used for: knowledge, training or evaluation."""


_MAX_DATASET_DIGEST = 32


def log_datasets(run: RunHandle, datasets: Sequence[DatasetUse]) -> None:
    """Record data as inputs of the run and of its parent, each once."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = [
        DatasetInput(
            Dataset(
                name=used.name,
                digest=used.digest[:_MAX_DATASET_DIGEST],
                source_type="local",
                source=json.dumps({"uri": used.source}),
                profile=json.dumps({"content": used.digest, **used.rows}),
            ),
            tags=[InputTag("mlflow.data.context", used.context)],
        )
        for used in datasets
    ]
    with reaching(run.uri, "record the data of the run"):
        for run_id in filter(None, (run.run_id, run.parent_run_id)):
            run.client.log_inputs(run_id, inputs)


class MlflowTracker:
    """Writes parameters, figures, files and some trajectories to one run.

    Figures wait for a server that is briefly away, until `finish`; everything else says so at once.
    """

    def __init__(self, run: RunHandle, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.run = run
        self._clock = clock
        self._pending: list[Metric] = []
        self._description = ""
        self._notes: list[str] = []
        self._next_flush = clock()  # the first figure shows at once
        self._traces: int | None = None

    def params(self, values: Mapping[str, object]) -> None:
        """Record settings; nested ones are joined by dots.

        MLflow's parameters cannot change. A stage that runs again with other settings gets a new
        run, and the former one is tagged with the id of its successor; a parent run keeps its
        first settings as parameters and the later ones as tags `espalier.param.NAME`.
        """
        params = {key: str(value)[:_MAX_VALUE_CHARS] for key, value in _flat(values)}
        with reaching(self.run.uri, "record parameters"):
            known = self.run.client.get_run(self.run.run_id).data.params
            changed = {key for key, value in params.items() if known.get(key, value) != value}
            if changed and self.run.parent_run_id:
                self._supersede()
                known, changed = {}, set()
            for key in sorted(changed):
                self.run.client.set_tag(self.run.run_id, f"espalier.param.{key}", params[key])
            self._log_params([(key, params[key]) for key in params.keys() - known.keys()])

    def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """Record figures; they are sent every few seconds."""
        from mlflow.entities import Metric

        now_ms = time.time_ns() // 1_000_000
        self._pending += [
            Metric(key, float(value), now_ms, step or 0) for key, value in values.items()
        ]
        if self._clock() >= self._next_flush:
            self._flush_or_wait()

    def artifact(self, path: Path) -> None:
        """Record a file, or a folder under its own name."""
        with reaching(self.run.uri, f"store {path}"):
            if path.is_dir():
                self.run.client.log_artifacts(self.run.run_id, str(path), path.name)
            else:
                self.run.client.log_artifact(self.run.run_id, str(path))

    def episodes(self, episodes: Sequence[Mapping[str, object]]) -> None:
        """Record trajectories as traces, at most twenty a run over all its attempts."""
        if self._traces is not None and self._traces >= MAX_TRACES:
            return
        with reaching(self.run.uri, "record trajectories as traces"):
            if self._traces is None:
                self._traces = count_traces(self.run)
            chosen = episodes[: max(0, MAX_TRACES - self._traces)]
            log_traces(self.run, chosen)
        self._traces += len(chosen)

    def describe(self, text: str) -> None:
        """Set the run's description, in Markdown; it shows at once, and notes come below it."""
        self._description = text
        with reaching(self.run.uri, "describe the run"):
            self.run.client.set_tag(self.run.run_id, _NOTE_TAG, text)

    def note(self, line: str) -> None:
        """Add a line to the run's description; it is written when the run ends."""
        self._notes.append(line)

    @contextmanager
    def progress(self, description: str, total: int) -> Iterator[Progress]:
        """Nothing: the terminal is another listener's."""
        with NullTracker().progress(description, total) as progress:
            yield progress

    def flush(self) -> None:
        """Send every pending figure now.

        Raises:
            RegistryError: the server is away; the figures stay pending.
        """
        with reaching(self.run.uri, f"record {len(self._pending)} figures"):
            while self._pending:
                self.run.client.log_batch(self.run.run_id, metrics=self._pending[:_BATCH])
                del self._pending[:_BATCH]

    def finish(self, status: str = "FINISHED") -> None:
        """Send what is pending and end the run.

        Raises:
            RegistryError: the server is away, unless the stage has failed anyway: then its own
                error is the one to show, and this one is logged.
        """
        try:
            self.flush()
            with reaching(self.run.uri, "end the run"):
                if self._notes:
                    notes = "\n\n".join(self._notes)[-_MAX_NOTE_CHARS:]
                    text = f"{self._description}\n\n{notes}".strip()
                    self.run.client.set_tag(self.run.run_id, _NOTE_TAG, text)
                self.run.client.set_terminated(self.run.run_id, status)
        except RegistryError as error:
            if status == "FINISHED":
                raise
            _log.warning("%s", error)

    def _flush_or_wait(self) -> None:
        started = self._clock()
        try:
            self.flush()
            wait_s = _FLUSH_SECONDS
        except RegistryError as error:
            wait_s = max(_RETRY_SECONDS, _RETRY_PER_SECOND * (self._clock() - started))
            _log.warning("%s (kept, next attempt in %.0f s)", error, wait_s)
        self._next_flush = self._clock() + wait_s

    def _log_params(self, params: list[tuple[str, str]]) -> None:
        from mlflow.entities import Param

        for start in range(0, len(params), _MAX_PARAMS):
            batch = [Param(key, value) for key, value in params[start : start + _MAX_PARAMS]]
            self.run.client.log_batch(self.run.run_id, params=batch)

    def _supersede(self) -> None:
        former = self.run.client.get_run(self.run.run_id)
        kept = (STAGE_TAG, PARENT_TAG)
        tags = {key: former.data.tags[key] for key in kept if key in former.data.tags}
        successor = self.run.client.create_run(
            self.run.experiment_id, tags=tags, run_name=former.info.run_name
        )
        self.run.client.set_tag(self.run.run_id, SUPERSEDED_TAG, successor.info.run_id)
        self.run.client.set_terminated(self.run.run_id, "KILLED")
        self.run = replace(self.run, run_id=successor.info.run_id)
        self._traces = 0


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat({str(k): v for k, v in value.items()}, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
