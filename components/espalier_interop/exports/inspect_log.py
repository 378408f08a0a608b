"""A log of Inspect (`inspect_ai`), format 2: what `inspect view` opens.

    demo.eval                          a zip file
      samples/TASK_epoch_1.json        an attempt: messages, scores, metadata
      summaries.json                   what lists show of all attempts
      header.json                      the evaluation: policy, counts, results

A task is a sample, and each attempt at it an epoch: of a held-out question, epoch 1 is the greedy
attempt. `inspect view` reads the summaries first and a sample when it is opened.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Self
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from espalier import __version__
from espalier.records import JsonObject, Message
from espalier.records.trajectory import FinishReason, ToolResult
from espalier_interop.exports.turns import (
    ExportedTrajectory,
    as_json,
    attempt_facts,
    model_name,
    names_of_calls,
    results_of_calls,
    task_facts,
)

_VERSION = 2
"""Of Inspect's format: LOG_SCHEMA_VERSION of inspect_ai 0.3.285."""
RIGHT, REWARD = "right", "reward"
"""Scores of a sample: C or I, and the total of the reward; reward/TERM is one of its terms."""
_SUMMARY_CHARACTERS = 1000
_SUMMARIES_IN_MEMORY = 32 << 20


class InspectLog:
    """Writes one log; a context manager, whose end writes summaries and header."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._closing = ExitStack()
        self._epochs: Counter[str] = Counter()
        self._right: dict[str, list[bool]] = defaultdict(list)
        """Whether each attempt at a sample was right; a lost one was not."""
        self._greedy: list[bool] = []
        """The same of the greedy attempts at held-out questions."""
        self._rewards: list[float] = []
        self._usage: Counter[str] = Counter()
        self._first: ExportedTrajectory | None = None
        self._times: list[float] = []

    def __enter__(self) -> Self:
        self._zip = self._closing.enter_context(ZipFile(self._path, "w", ZIP_DEFLATED))
        self._summaries = self._closing.enter_context(
            tempfile.SpooledTemporaryFile(_SUMMARIES_IN_MEMORY, "w+", encoding="utf-8")
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._closing:
            if error is None:
                self._finish()

    def add(self, exported: ExportedTrajectory) -> int:
        """Write an attempt as a sample; returns 1.

        Raises:
            ArtifactError: a number in it is not finite.
        """
        sample = self._sample(exported)
        self._summaries.write("," if self._first else "[")
        self._summaries.write(as_json(exported, _summary(sample)))
        name = f"samples/{sample['id']}_epoch_{sample['epoch']}.json"
        self._write(name, as_json(exported, sample))
        self._first = self._first or exported
        return 1

    def _sample(self, exported: ExportedTrajectory) -> JsonObject:
        trajectory, place = exported.trajectory, exported.place
        sample_id = trajectory.task_id
        if place and place.step:
            sample_id = f"{sample_id}@{place.step}"  # each step asks its tasks anew
        epoch = max(place.sample if place else 0, self._epochs[sample_id]) + 1
        self._epochs[sample_id] = epoch
        self._right[sample_id].append(trajectory.is_right)
        if place and not place.step and not place.sample:
            self._greedy.append(trajectory.is_right)
        if not trajectory.is_lost:
            self._rewards.append(trajectory.total_reward)
        usage = _usage(exported)
        self._usage.update(usage)
        messages = [*_messages(exported)]
        metadata = task_facts(exported) | attempt_facts(exported)
        if exported.tools is not None:
            metadata["tools"] = [spec.name for spec in exported.tools]
        prompt = exported.turns[0].read if exported.turns else ()
        model = _model(exported)
        sample: JsonObject = {
            "id": sample_id,
            "epoch": epoch,
            "input": [*messages[: len(prompt)]],
            "target": "",  # gold answers are not exported
            "messages": [*messages],
            "output": _output(exported, messages, model, usage),
            "scores": {} if trajectory.is_lost else _scores(exported),
            "metadata": metadata,
            "store": {},
            "events": [],
            "model_usage": {model: {**usage}},
            "uuid": _identity(f"{exported.origin}|{sample_id}|{epoch}"),
            "attachments": {},
        }
        if place and place.time is not None:
            self._times.append(place.time)
            sample["completed_at"] = _iso(place.time)
        if trajectory.spans:
            total_s = max(span.end for span in trajectory.spans)
            waits = [span for span in trajectory.spans if span.kind == "waiting"]
            sample["total_time"] = round(total_s, 5)
            waited_s = sum(span.end - span.start for span in waits)
            sample["working_time"] = round(max(0.0, total_s - waited_s), 5)
        reason = trajectory.finish_reason
        if trajectory.is_lost:
            text = f"the attempt was lost ({reason.value}) and not judged"
            sample["error"] = {"message": text, "traceback": text, "traceback_ansi": text}
        if reason is FinishReason.MAX_TURNS:
            sample["limit"] = {"type": "turn", "limit": len(exported.turns)}
        return sample

    def _write(self, name: str, text: str) -> None:
        self._zip.writestr(_entry(name), text)

    def _finish(self) -> None:
        self._summaries.write("]" if self._first else "[]")
        self._summaries.seek(0)
        with self._zip.open(_entry("summaries.json"), "w") as target:
            while part := self._summaries.read(1 << 20):
                target.write(part.encode("utf-8"))
        self._write("header.json", json.dumps(self._header(), ensure_ascii=False))

    def _header(self) -> JsonObject:
        first = self._first
        origin = first.origin if first else ""
        began = _iso(min(self._times, default=0.0))
        model = _model(first) if first else ""
        family = first.family if first else ""
        count = sum(len(attempts) for attempts in self._right.values())
        scorers: list[JsonObject] = [
            {"name": RIGHT, "metrics": [{"name": "inspect_ai/accuracy"}]},
            {"name": REWARD, "metrics": [{"name": "inspect_ai/mean"}]},
        ]
        evaluation: JsonObject = {
            "eval_id": _identity(f"eval|{origin}|{began}"),
            "run_id": _identity(f"run|{origin}|{began}"),
            "task_id": _identity(f"task|{origin}"),
            "created": began,
            "task": family or model_name(origin),
            "dataset": {
                "name": family or None,
                "samples": len(self._right),
                "sample_ids": [*self._right],
            },
            "model": model,
            "config": {"epochs": max(self._epochs.values(), default=1)},
            "packages": {"espalier": __version__},
            "metadata": {"source": origin},
            "scorers": [*scorers],
        }
        return {
            "version": _VERSION,
            "status": "success",
            "eval": evaluation,
            "plan": {"name": "espalier", "steps": [], "config": {}},
            "results": {
                "total_samples": count,
                "completed_samples": count,
                "scores": [*self._results()],
            },
            "stats": {
                "started_at": began,
                "completed_at": _iso(max(self._times, default=0.0)),
                "model_usage": {model: {**self._usage}} if model else {},
            },
        }

    def _results(self) -> Iterator[JsonObject]:
        """Yield the share of right attempts, that of greedy ones first, and the mean reward.

        A lost attempt counts as wrong, as in the run's own scores.
        """
        attempts = [*self._right.values()]
        count = sum(map(len, attempts))
        if self._greedy:
            share = sum(self._greedy) / len(self._greedy)
            yield _result(RIGHT, "accuracy", share, len(self._greedy), "greedy")
        if count > len(self._greedy):
            mean = sum(sum(one) / len(one) for one in attempts) / len(attempts)
            yield _result(RIGHT, "accuracy", mean, count, "mean")
        if self._rewards:
            mean = sum(self._rewards) / len(self._rewards)
            yield _result(REWARD, "mean", mean, len(self._rewards), None)


def _entry(name: str) -> ZipInfo:
    # without the time of writing, the same attempts give the same file
    entry = ZipInfo(name)
    entry.compress_type = ZIP_DEFLATED
    return entry


def _result(score: str, metric: str, value: float, count: int, reducer: str | None) -> JsonObject:
    return {
        "name": score,
        "scorer": score,
        "reducer": reducer,
        "scored_samples": count,
        "metrics": {metric: {"name": metric, "value": value}},
    }


def _model(exported: ExportedTrajectory) -> str:
    return f"espalier/{model_name(exported.origin)}"


def _summary(sample: JsonObject) -> JsonObject:
    """Return what lists show of a sample: the same fields, with short texts."""
    messages = sample["messages"]
    first = [one for one in _objects(sample["input"]) if one["role"] == "user"]
    metadata = sample["metadata"]
    error = sample.get("error")
    limit = sample.get("limit")
    found: JsonObject = {
        "id": sample["id"],
        "epoch": sample["epoch"],
        "input": str(first[-1]["content"])[:_SUMMARY_CHARACTERS] if first else "",
        "target": sample["target"],
        "metadata": {
            name: value[:_SUMMARY_CHARACTERS] if isinstance(value, str) else value
            for name, value in (metadata.items() if isinstance(metadata, dict) else ())
            if not isinstance(value, dict | list)
        },
        "scores": sample["scores"],
        "model_usage": sample["model_usage"],
        "uuid": sample["uuid"],
        "error": error["message"] if isinstance(error, dict) else None,
        "limit": limit["type"] if isinstance(limit, dict) else None,
        "completed": True,
        "message_count": len(messages) if isinstance(messages, list) else 0,
    }
    times = ("completed_at", "total_time", "working_time")
    return found | {name: sample[name] for name in times if name in sample}


def _objects(value: object) -> list[JsonObject]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _messages(exported: ExportedTrajectory) -> Iterator[JsonObject]:
    names, results = names_of_calls(exported.turns), results_of_calls(exported)
    model = _model(exported)
    number = 0
    for turn in exported.turns:
        for message in (*turn.read, *((turn.wrote,) if turn.wrote else ())):
            said: JsonObject = {"id": f"{exported.export_id}-{number}"} | _message(
                message, names, results
            )
            if message.role == "assistant":
                # an example in the prompt was written by no model
                is_sampled = message is turn.wrote
                said |= {"source": "generate", "model": model} if is_sampled else {}
            yield said
            number += 1


def _message(
    message: Message, names: Mapping[str, str], results: Mapping[str, ToolResult]
) -> JsonObject:
    said: JsonObject = {"role": message.role, "content": message.content}
    if message.role == "tool":
        said["tool_call_id"] = message.call_id
        said["function"] = names.get(message.call_id, "")
        result = results.get(message.call_id)
        if result is not None and not result.succeeded:
            said["error"] = {"type": "unknown", "message": message.content}
    if message.thought is not None:
        said["content"] = [
            {"type": "reasoning", "reasoning": message.thought},
            {"type": "text", "text": message.content},
        ]
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.call_id,
                "function": call.name,
                "arguments": call.arguments,
                "type": "function",
            }
            for call in message.tool_calls
        ]
    return said


def _usage(exported: ExportedTrajectory) -> dict[str, int]:
    """Return the tokens of all requests together: each reads its context again."""
    read = sum(len(turn.context_ids) for turn in exported.turns if turn.wrote)
    wrote = sum(len(turn.wrote_ids) for turn in exported.turns)
    return {"input_tokens": read, "output_tokens": wrote, "total_tokens": read + wrote}


def _output(
    exported: ExportedTrajectory, messages: Sequence[JsonObject], model: str, usage: dict[str, int]
) -> JsonObject:
    written = [one for one in messages if one.get("source") == "generate"]
    output: JsonObject = {
        "model": model,
        "completion": exported.trajectory.answer or "",
        "usage": {**usage},
    }
    if not written:
        return output | {"choices": []}
    ended = exported.trajectory.finish_reason
    stop = "max_tokens" if ended is FinishReason.MAX_TOKENS else "stop"
    if "tool_calls" in written[-1]:
        stop = "tool_calls"
    output["choices"] = [{"message": written[-1], "stop_reason": stop}]
    return output


def _scores(exported: ExportedTrajectory) -> JsonObject:
    trajectory = exported.trajectory
    ended = trajectory.finish_reason.value
    scores: JsonObject = {
        RIGHT: {
            "value": "C" if trajectory.is_right else "I",
            "answer": trajectory.answer,
            "explanation": f"the attempt ended with {ended}",
        },
        REWARD: {"value": trajectory.total_reward},
    }
    for term, value in trajectory.reward.items():
        scores[f"{REWARD}/{term}"] = {"value": value}
    return scores


def _identity(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:22]


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
