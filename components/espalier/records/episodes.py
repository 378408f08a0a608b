"""Attempts as records of the stream `episodes`, and what lists show of one.

    {"step": 12, "time": 1796000312.5, "task_id": "train-4f1a", "group_id": "train-4f1a",
     "sample": 3, "policy_version": 11, "finish_reason": "answered", "answer": "...",
     "reward": {"outcome": 1.0}, "messages": [...], "tool_calls": [...],
     "turns": [[16, 40, 97, 0.0]], "window_starts": [0], "attempts": 1, "token_ids": INT32,
     "mask_runs": [16, 24, 57], "behavior_logprobs": FLOAT32, "trained": true,
     "advantages": FLOAT32, "trainer_logprobs": FLOAT32, "entropies": FLOAT32,
     "loss_runs": [16, 24, 57], "spans": [["sampling", 0.0, 1.25, 0]]}

INT32 and FLOAT32 are base64 of little-endian values. `mask_runs` are lengths of runs of
`action_mask`, the first of which is of zeros; `loss_runs` are the same of the loss mask.
`behavior_logprobs`, `trainer_logprobs`, `entropies` and `advantages` have a value for each token
that the policy sampled and for no other; one of a token that nobody scored is NaN. `advantages`
and what follows them is only there where a step has trained on the attempt; `spans` where they were
measured: kind, start and end in seconds since the attempt began, and the turn.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from espalier.records.errors import ArtifactError
from espalier.records.message import Message
from espalier.records.spans import Span
from espalier.records.streams import StreamRecord, read_stream
from espalier.records.trajectory import FinishReason, Trajectory, Turn, call_entry, tool_result

EPISODES = "episodes"
"""Name of the stream."""
QUESTION_CHARACTERS = 160
"""Characters of a question or an answer in a summary."""
_MOST_TOKENS = 1 << 26
"""Most tokens of an attempt that is read: a few bytes of `mask_runs` can ask for gigabytes."""


class UpdateView(NamedTuple):
    """What the update that trained on an attempt knew of its tokens, one value for each of them."""

    advantages: Sequence[float]
    loss_mask: Sequence[int]
    trainer_logprobs: Sequence[float] | None = None
    """Nats; NaN where they are not known; None if the algorithm did not score the attempt."""
    entropies: Sequence[float] | None = None
    """Of the distribution before each token, nats; None as above."""


class EpisodePlace(NamedTuple):
    """Where an attempt stands in its run."""

    step: int
    """The step that sampled it, counted from 1; 0 outside of training."""
    sample: int
    """Number among the attempts at its task in that step, or 0 where it is greedy."""
    time: float | None
    """When it was recorded, in seconds since 1970."""


def episode_record(
    trajectory: Trajectory,
    place: EpisodePlace,
    *,
    is_trained: bool | None = None,
    update: UpdateView | None = None,
) -> StreamRecord:
    """Return the record of an attempt, with its summary.

    Args:
        trajectory: the attempt.
        place: where it stands.
        is_trained: whether a step has learned from it; None where nothing is trained.
        update: values of that step.
    """
    mask = np.asarray(trajectory.action_mask, dtype=bool)
    content: dict[str, Any] = {
        "time": place.time,
        "task_id": trajectory.task_id,
        "group_id": trajectory.group_id,
        "sample": place.sample,
        "policy_version": trajectory.policy_version,
        "finish_reason": trajectory.finish_reason.value,
        "answer": trajectory.answer,
        "reward": trajectory.reward,
        "messages": [message.model_dump() for message in trajectory.messages],
        "tool_calls": [call_entry(result) for result in trajectory.tool_results],
        "turns": [[t.action_start, t.action_end, t.observation_end, t.reward]
                  for t in trajectory.turns],
        "window_starts": list(trajectory.window_starts),
        "attempts": trajectory.attempts,
        "token_ids": packed(trajectory.token_ids, "<i4"),
        "mask_runs": mask_runs(trajectory.action_mask),
        "behavior_logprobs": packed(np.asarray(trajectory.behavior_logprobs)[mask], "<f4"),
    }  # fmt: skip
    if trajectory.detour:
        content["detour"] = trajectory.detour
    if is_trained is not None:
        content["trained"] = is_trained
    if update is not None:
        content["advantages"] = packed(np.asarray(update.advantages)[mask], "<f4")
        content["loss_runs"] = mask_runs(update.loss_mask)
        for name in ("trainer_logprobs", "entropies"):
            values = getattr(update, name)
            if values is not None:
                content[name] = packed(np.asarray(values)[mask], "<f4")
    if trajectory.spans:
        content["spans"] = [
            [kind, round(start, 5), round(end, 5), turn]
            for kind, start, end, turn in trajectory.spans
        ]
    return StreamRecord(place.step, content, episode_summary(content))


class Episode(NamedTuple):
    """An attempt, read from a stream."""

    place: EpisodePlace
    trajectory: Trajectory


def read_episodes(folder: Path) -> Iterator[Episode]:
    """Yield the attempts of the stream in a folder, in order.

    Raises:
        ArtifactError: a record is no attempt.
    """
    for number, record in enumerate(read_stream(folder, EPISODES)):
        try:
            yield _episode(record)
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(
                f"{folder}, record {number} of the attempts: damaged ({error!r}). Run the stage "
                "that wrote it again"
            ) from error


def _episode(record: Mapping[str, Any]) -> Episode:
    mask = mask_of(record["mask_runs"])
    ids, sampled = unpacked(record["token_ids"], "<i4"), mask == 1
    logprobs = np.zeros(len(mask), dtype="<f4")
    logprobs[sampled] = unpacked(record["behavior_logprobs"], "<f4")
    if len(ids) != len(mask):
        raise ValueError(f"{len(ids)} tokens and a mask of {len(mask)}")
    trajectory = Trajectory(
        task_id=record["task_id"],
        group_id=record["group_id"],
        messages=tuple(Message(**message) for message in record["messages"]),
        tool_results=tuple(tool_result(entry) for entry in record["tool_calls"]),
        reward=dict(record["reward"]),
        answer=record["answer"],
        finish_reason=FinishReason(record["finish_reason"]),
        policy_version=record["policy_version"],
        token_ids=tuple(ids.tolist()),
        action_mask=tuple(mask.tolist()),
        behavior_logprobs=tuple(logprobs.tolist()),
        turns=tuple(
            Turn(action_start=start, action_end=end, observation_end=seen, reward=reward)
            for start, end, seen, reward in record["turns"]
        ),
        window_starts=tuple(record["window_starts"]),
        attempts=record["attempts"],
        detour=record.get("detour", ""),
        spans=tuple(
            Span(kind, float(start), float(end), turn)
            for kind, start, end, turn in record.get("spans", ())
        ),
    )
    place = EpisodePlace(record["step"], record["sample"], record["time"])
    return Episode(place, trajectory)


def packed(values: Sequence[float] | np.ndarray, kind: str) -> str:
    """Return values as base64 of the little-endian type `kind`, "<i4" or "<f4"."""
    return b64encode(np.asarray(values, dtype=kind).tobytes()).decode("ascii")


def unpacked(text: object, kind: str) -> np.ndarray:
    """Return the values of `packed`.

    Raises:
        ValueError: it is no base64 of whole values.
    """
    if not isinstance(text, str):
        raise ValueError("it is no text")
    return np.frombuffer(b64decode(text, validate=True), dtype=kind)


def mask_runs(mask: Sequence[int]) -> list[int]:
    """Return the lengths of a mask's runs, the first of which is of zeros and may be empty."""
    runs = [(bool(value), len(list(group))) for value, group in groupby(mask)]
    lengths = [length for _, length in runs]
    return [0, *lengths] if runs and runs[0][0] else lengths


def mask_of(runs: Sequence[int]) -> np.ndarray:
    """Return the mask of `mask_runs`, uint8.

    Raises:
        ValueError: a length is no count, or the mask would be longer than any attempt.
    """
    if not all(type(length) is int and length >= 0 for length in runs):
        raise ValueError("a length is no count")
    if sum(runs) > _MOST_TOKENS:
        raise ValueError(f"it has more than {_MOST_TOKENS} tokens")
    return np.repeat(np.arange(len(runs), dtype=np.uint8) % 2, runs)


def episode_summary(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what lists show of an attempt, from its record.

    Raises:
        ValueError, TypeError, KeyError: it is no record of an attempt.
    """
    reward = {str(name): float(value) for name, value in content["reward"].items()}
    calls = content["tool_calls"]
    messages = content["messages"]
    prompts = [message["content"] for message in messages if message["role"] == "user"]
    logprobs = unpacked(content["behavior_logprobs"], "<f4")
    advantages = unpacked(content.get("advantages", ""), "<f4")
    same = Counter((call["name"], json.dumps(call["arguments"], sort_keys=True)) for call in calls)
    answer = content["answer"]
    return {
        "task": content["task_id"],
        "sample": content["sample"],
        "version": content["policy_version"],
        "question": (prompts[0] if prompts else "")[:QUESTION_CHARACTERS],
        "reward": sum(reward.values()),
        "terms": reward,
        "right": reward.get("outcome", 0.0) > 0,
        "finish": content["finish_reason"],
        "answer": None if answer is None else answer[:QUESTION_CHARACTERS],
        "turns": len(content["turns"]) or sum(m["role"] == "assistant" for m in messages),
        "calls": len(calls),
        "failed_calls": sum(not call["succeeded"] for call in calls),
        "last_call_failed": bool(calls) and not calls[-1]["succeeded"],
        "unknown_calls": sum(not call.get("exists", True) for call in calls),
        "most_equal_calls": max(same.values(), default=0),
        "tools": Counter(call["name"] for call in calls),
        "tokens": sum(content["mask_runs"]),
        "sampled_tokens": len(logprobs),
        "mean_logprob": _mean(logprobs),
        "advantage": _mean(advantages),
        "trained": content.get("trained"),
        "time": content["time"],
    }


def is_lost(finish_reason: str) -> bool:
    """Return whether an attempt of this finish reason has no reward, by infrastructure."""
    try:
        return FinishReason(finish_reason).is_lost
    except ValueError:
        return False


def _mean(values: np.ndarray) -> float | None:
    if not len(values):
        return None
    with np.errstate(all="ignore"):
        mean = float(np.mean(values, dtype=np.float64))
    return round(mean, 6) if math.isfinite(mean) else None
