"""Tracker that writes a stage's parameters, figures, files and trajectories to one MLflow run.

A trajectory becomes a trace, with a child span for each turn and tool call:

    AGENT task_id                 the first messages -> the last one; assessment `reward`
    CHAT_MODEL policy             the messages so far -> the policy's message
    TOOL search                   the policy's message -> the tool's observation
    CHAT_MODEL policy             ...
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

from pydantic import BaseModel

from espalier.records import NullTracker, Progress, RegistryError, patiently, write_whole
from espalier.records.step_figures import OVERVIEW
from espalier.registry.connection import reaching, send_traces_to

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Span

MAX_TRACES = 20
"""Most traces per run; the stage's artifact has all trajectories."""

_OK_REASON = "answered"
_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")
"""Keys of a chat message that are copied into a span."""


def count_traces(run: RunHandle) -> int:
    """Number of traces of the run, at most `MAX_TRACES`."""
    found = run.client.search_traces(
        locations=[run.experiment_id],
        run_id=run.run_id,
        max_results=MAX_TRACES,
        include_spans=False,
    )
    return len(found)


def log_traces(run: RunHandle, episodes: Sequence[Mapping[str, object]]) -> None:
    """Write each episode (see `espalier.records.Tracker.episodes`) as one trace."""
    send_traces_to(run.uri)
    for episode in episodes:
        _log_reward(_log_trace(run, episode), episode.get("reward"))


def _log_trace(run: RunHandle, episode: Mapping[str, object]) -> str:
    messages = _messages(episode.get("messages"))
    finish_reason = str(episode.get("finish_reason", ""))
    task_id = str(episode.get("task_id", "episode"))
    root = run.client.start_trace(
        task_id,
        span_type="AGENT",
        inputs={"messages": messages[:1]},
        attributes={"finish_reason": finish_reason},
        tags={"espalier.task_id": task_id} | _viewer_tag(run, view="lineage", task=task_id),
        experiment_id=run.experiment_id,
        run_id=run.run_id,
    )
    tools = episode.get("tools")
    _log_spans(run, root, messages, iter(tools if isinstance(tools, Sequence) else ()))
    run.client.end_trace(
        root.trace_id,
        outputs={"messages": messages[-1:]},
        attributes={"messages": messages},
        status="OK" if finish_reason == _OK_REASON else "ERROR",
    )
    return root.trace_id


def _viewer_tag(run: RunHandle, **state: str) -> dict[str, str]:
    """Return the tag with a page of the run in the viewer; {} where no viewer is known."""
    if run.viewer is None:
        return {}
    # an address without a run is that of the viewer's list of runs, which has no such page
    page = f"&{urlencode(state)}" if "?run=" in run.viewer else ""
    return {VIEWER_TAG: run.viewer + page}


def _log_spans(
    run: RunHandle, root: Span, messages: Sequence[Mapping[str, Any]], tools: Iterator[str]
) -> None:
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            name, span_type = "policy", "CHAT_MODEL"
            inputs: dict[str, Any] = {"messages": messages[:place]}
            outputs: dict[str, Any] = {"choices": [{"message": message}]}
        elif message["role"] == "tool":
            name, span_type = str(message.get("name") or next(tools, "tool")), "TOOL"
            before = messages[place - 1] if place else {}
            inputs = {"action": before.get("tool_calls") or before.get("content", "")}
            outputs = {"observation": message["content"]}
        else:
            continue
        span = run.client.start_span(
            name,
            trace_id=root.trace_id,
            parent_id=root.span_id,
            span_type=span_type,
            inputs=inputs,
            # MLflow's page renders the messages by this format
            attributes={"mlflow.message.format": "openai"} if span_type == "CHAT_MODEL" else None,
        )
        run.client.end_span(root.trace_id, span.span_id, outputs=outputs)


def _log_reward(trace_id: str, reward: object) -> None:
    """Record the reward, a number or named terms that sum to it, as an assessment."""
    import mlflow
    from mlflow.entities import AssessmentSource

    terms = reward if isinstance(reward, Mapping) else {}
    value = sum(terms.values()) if terms else reward
    if isinstance(value, int | float):
        mlflow.log_feedback(
            trace_id=trace_id,
            name="reward",
            value=float(value),
            source=AssessmentSource(source_type="CODE", source_id="espalier"),
            metadata={str(name): str(term) for name, term in terms.items()} or None,
        )


def _messages(value: object) -> list[dict[str, Any]]:
    """Chat messages (dicts or `Message` objects) as plain dicts."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    messages = []
    for item in value:
        if not isinstance(item, Mapping):
            item = {field: getattr(item, field, None) for field in _FIELDS}
        present = {field: item[field] for field in _FIELDS if item.get(field)}
        message = {"role": "", "content": "", **present}
        calls = [_call(dict(call)) for call in item.get("tool_calls") or ()]
        if calls:
            message["tool_calls"] = calls
        messages.append(message)
    return messages


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call in the shape of OpenAI's chat API, which MLflow's UI displays."""
    if "function" in call:
        return dict(call)
    arguments = json.dumps(call.get("arguments", {}))
    function = {"name": call.get("name", ""), "arguments": arguments}
    return {"id": call.get("call_id", ""), "type": "function", "function": function}


STAGE_TAG = "espalier.stage"
PARENT_TAG = "mlflow.parentRunId"
SUPERSEDED_TAG = "espalier.superseded_by"
NOTE_TAG = "mlflow.note.content"
VIEWER_TAG = "espalier.viewer"
"""Address of the run, or of a trace's task, in `espalier ui`."""

_BATCH = 200
"""Figures per request; MLflow accepts at most 1000."""
_FLUSH_SECONDS = 5.0
"""Interval between batches: one takes 5-20 ms with sqlite, well under 1 % of a training run."""
_RETRY_SECONDS = 30.0
_RETRY_PER_SECOND = 10.0
"""Pause per second that a failed request took: training must not wait for a slow server."""
_MAX_PARAMS = 100
_MAX_VALUE_CHARS = 6000
_MAX_NOTE_CHARS = 4000

_MAX_KEY_CHARS = 250
_REFUSED_CHARS = re.compile(r"[^\w .:/-]")

_log = logging.getLogger(__name__)


def _metric_key(name: str) -> str:
    """The name, with what MLflow refuses in a metric's name as `:HEX:`; equal for most names.

    Names of reward terms come from agents, and one refused name would refuse the whole batch.
    """
    quoted = _REFUSED_CHARS.sub(_quoted, name)
    # MLflow takes only paths that name one place: "a//b", "/a" and "a/../b" are not among them
    parts = [part if part.strip(".") else f":{part.encode().hex()}:" for part in quoted.split("/")]
    key = "/".join(parts)
    if len(key) <= _MAX_KEY_CHARS:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    return f"{key[: _MAX_KEY_CHARS - len(digest) - 1]}:{digest}"


def _quoted(found: re.Match[str]) -> str:
    return f":{ord(found[0]):x}:"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHandle:
    """An MLflow run with the client to write to it."""

    client: MlflowClient
    uri: str
    run_id: str
    experiment_id: str
    parent_run_id: str | None = None
    pipeline_run_id: str | None = None
    """Run of the whole pipeline: the highest above it. Kubeflow's MLflow plugin makes runs between,
    one for each part of the pipeline and one for each task."""
    ends_parent: Literal["always", "killed", "never"] = "never"
    """When the stage has to end the parent: always, where no process of its own does; where the
    stage is killed, for the plugin's run of a task, which the plugin then leaves as RUNNING."""
    unsent: Path | None = None
    """Folder that keeps figures while the server is away, for `send_unsent`; None keeps none."""
    stage: str = ""
    """Name of the stage; empty for the run of a pipeline."""
    viewer: str | None = None
    """Address of the run in the viewer, or of the viewer's list of runs."""

    @property
    def unsent_file(self) -> Path | None:
        """The run's own file in `unsent`."""
        return None if self.unsent is None else self.unsent / f"{self.run_id}.json"

    @property
    def unsent_curves(self) -> Path | None:
        """The file in `unsent` for curves that the run sends to the pipeline's run."""
        if self.unsent is None or self.pipeline_run_id is None:
            return None
        return self.unsent / f"{self.pipeline_run_id}.{self.stage}.json"


@dataclass(frozen=True, slots=True)
class DatasetUse:
    """A dataset that a run read."""

    name: str
    digest: str
    """Content digest: hexadecimal SHA-256, of which MLflow stores the first half."""
    source: str
    """A folder, or another dataset's name."""
    rows: Mapping[str, int]
    context: str
    """Its use: knowledge, training or evaluation."""


class _Unsent(BaseModel, extra="forbid"):
    """What a run could not send: its last status, and figures as (name, value, ms, step)."""

    status: str | None
    figures: list[tuple[str, str, int, int]]


def send_unsent(run: RunHandle) -> None:
    """Send what runs kept in the folder `unsent` while the server was away.

    Raises:
        RegistryError: the server is unreachable; the files stay.
    """
    from mlflow.entities import Metric

    for path in sorted(run.unsent.glob("*.json")) if run.unsent else ():
        kept = _Unsent.model_validate_json(path.read_bytes())
        figures = [Metric(name, float(value), ms, step) for name, value, ms, step in kept.figures]
        with reaching(run.uri, f"send {len(figures)} figures of before"):
            run_id = path.name.partition(".")[0]
            _send(run.client, run_id, figures)
            if kept.status:
                run.client.set_terminated(run_id, kept.status)
        path.unlink()


def _send(client: MlflowClient, run_id: str, figures: list[Metric]) -> None:
    """Send figures and remove them from the list, batch by batch."""
    while figures:
        client.log_batch(run_id, metrics=figures[:_BATCH])
        del figures[:_BATCH]


_MAX_DATASET_DIGEST = 32


def log_datasets(run: RunHandle, datasets: Sequence[DatasetUse]) -> None:
    """Record datasets as inputs of the run and of the pipeline's run."""
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
        for run_id in filter(None, (run.run_id, run.pipeline_run_id)):
            run.client.log_inputs(run_id, inputs)


class MlflowTracker:
    """Writes parameters, figures, files and some trajectories to one run.

    While the server is unreachable, figures are kept and sent later, at the latest by `finish`;
    every other call is retried (`espalier.records.patience`).
    """

    def __init__(self, run: RunHandle, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.run = run
        self._clock = clock
        self._pending: list[Metric] = []
        self._curves: list[Metric] = []
        """Pending figures of the overview, which the pipeline's run shows too."""
        self._description = ""
        self._notes: list[str] = []
        self._next_flush = clock()  # the first figure is sent at once
        self._traces: int | None = None

    def params(self, values: Mapping[str, object]) -> None:
        """Record settings; keys of nested settings are joined by dots.

        Parameters in MLflow are immutable. A stage that runs again with other settings gets a new
        run, whose id the former run carries in a tag. A parent run keeps its first settings as
        parameters, and gets later ones as tags `espalier.param.NAME`.
        """
        params = {key: str(value)[:_MAX_VALUE_CHARS] for key, value in _flat(values)}
        patiently(lambda: self._record_params(params))

    def _record_params(self, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        with reaching(self.run.uri, "record parameters"):
            known = self.run.client.get_run(self.run.run_id).data.params
            changed = {key for key, value in params.items() if known.get(key, value) != value}
            if changed and self.run.parent_run_id:
                self._supersede()
                known, changed = {}, set()
            for key in sorted(changed):
                self.run.client.set_tag(self.run.run_id, f"espalier.param.{key}", params[key])
            new = [Param(key, params[key]) for key in params.keys() - known.keys()]
            for start in range(0, len(new), _MAX_PARAMS):
                batch = new[start : start + _MAX_PARAMS]
                self.run.client.log_batch(self.run.run_id, params=batch)

    def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """Record figures; they are sent every few seconds.

        Those of the overview that have a step are recorded in the pipeline's run too, as
        STAGE/NAME.
        """
        from mlflow.entities import Metric

        now_ms = time.time_ns() // 1_000_000
        self._pending += [
            Metric(_metric_key(key), float(value), now_ms, step or 0)
            for key, value in values.items()
        ]
        if step is not None and self.run.pipeline_run_id is not None:
            self._curves += [
                Metric(f"{self.run.stage}/{key}", float(values[key]), now_ms, step)
                for key in OVERVIEW
                if key in values
            ]
        if self._clock() >= self._next_flush:
            self._flush_or_wait()

    def artifact(self, path: Path) -> None:
        """Record a file, or a folder under its own name."""
        patiently(lambda: self._store(path))

    def _store(self, path: Path) -> None:
        with reaching(self.run.uri, f"store {path}"):
            if path.is_dir():
                self.run.client.log_artifacts(self.run.run_id, str(path), path.name)
            else:
                self.run.client.log_artifact(self.run.run_id, str(path))

    def episodes(self, episodes: Sequence[Mapping[str, object]]) -> None:
        """Record trajectories as traces, at most `MAX_TRACES` per run over all its attempts."""
        if self._traces is not None and self._traces >= MAX_TRACES:
            return
        if self._traces is None:
            self._traces = patiently(self._count_traces)
        for episode in episodes[: max(0, MAX_TRACES - self._traces)]:
            patiently(partial(self._record_episode, episode))
            self._traces += 1

    def _count_traces(self) -> int:
        with reaching(self.run.uri, "count the traces of the run"):
            return count_traces(self.run)

    def _record_episode(self, episode: Mapping[str, object]) -> None:
        with reaching(self.run.uri, "record trajectories as traces"):
            log_traces(self.run, [episode])

    def describe(self, text: str) -> None:
        """Set the run's description, in Markdown, at once; notes are appended when the run ends."""
        self._description = text
        patiently(self._send_description)

    def _send_description(self) -> None:
        with reaching(self.run.uri, "describe the run"):
            self.run.client.set_tag(self.run.run_id, NOTE_TAG, self._description)

    def note(self, line: str) -> None:
        """Add a line to the run's description, written when the run ends."""
        self._notes.append(line)

    @contextmanager
    def progress(self, description: str, total: int) -> Iterator[Progress]:
        """Show nothing: another tracker writes to the terminal."""
        with NullTracker().progress(description, total) as progress:
            yield progress

    def flush(self) -> None:
        """Send all pending figures.

        Raises:
            RegistryError: the server is unreachable; the figures stay pending.
        """
        with reaching(self.run.uri, f"record {len(self._pending)} figures"):
            _send(self.run.client, self.run.run_id, self._pending)
            if self.run.pipeline_run_id is not None:
                _send(self.run.client, self.run.pipeline_run_id, self._curves)
        for path in (self.run.unsent_file, self.run.unsent_curves):
            if path is not None:
                path.unlink(missing_ok=True)

    def finish(self, status: str = "FINISHED") -> None:
        """Send pending figures and end the run.

        Raises:
            RegistryError: the server is unreachable. This is only logged after a failed stage, so
                that the stage's own error is the one shown, and where the run keeps what is unsent.
        """
        try:
            if status == "FINISHED":
                patiently(lambda: self._end(status))
            else:
                self._end(status)
        except RegistryError as error:
            if status == "FINISHED" and self.run.unsent is None:
                raise
            self._keep(status)
            _log.warning("%s", error)

    def _keep(self, status: str | None = None) -> None:
        """Write what is unsent to the run's files, where it has them."""
        for path, unsent, ends in (
            (self.run.unsent_file, self._pending, status),
            (self.run.unsent_curves, self._curves, None),
        ):
            if path is None:
                continue
            if unsent or ends:
                figures = [(one.key, str(one.value), one.timestamp, one.step) for one in unsent]
                write_whole(path, _Unsent(status=ends, figures=figures).model_dump_json())
            else:
                path.unlink(missing_ok=True)

    def _end(self, status: str) -> None:
        self.flush()
        with reaching(self.run.uri, "end the run"):
            if self._notes:
                notes = "\n\n".join(self._notes)[-_MAX_NOTE_CHARS:]
                text = f"{self._description}\n\n{notes}".strip()
                self.run.client.set_tag(self.run.run_id, NOTE_TAG, text)
            self.run.client.set_terminated(self.run.run_id, status)

    def _flush_or_wait(self) -> None:
        started = self._clock()
        try:
            self.flush()
            wait_s = _FLUSH_SECONDS
        except RegistryError as error:
            wait_s = max(_RETRY_SECONDS, _RETRY_PER_SECOND * (self._clock() - started))
            self._keep()
            _log.warning("%s (kept, next attempt in %.0f s)", error, wait_s)
        self._next_flush = self._clock() + wait_s

    def _supersede(self) -> None:
        former = self.run.client.get_run(self.run.run_id)
        kept = (STAGE_TAG, PARENT_TAG, VIEWER_TAG)
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
