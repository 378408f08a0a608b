"""The record of one attempt at one task, and its parquet file."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from espalier.records.errors import ArtifactError
from espalier.records.message import Message, ToolCall
from espalier.records.spans import Span


class FinishReason(enum.StrEnum):
    """Why a trajectory ended."""

    ANSWERED = "answered"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    PARSE_ERROR = "parse_error"
    PROGRAM_BROKE_SANDBOX = "program_broke_sandbox"
    """A program of the policy ended its own sandbox: a wrong answer."""
    TIMEOUT = "timeout"
    """Lost: a call of the environment took too long, and no program was to blame; an agent was not
    done by its deadline; or its group was closed without it."""
    SANDBOX_LOST = "sandbox_lost"
    """Lost: the environment crashed, no sandbox was free in time, or one was lost to
    infrastructure."""
    LOST_CALL = "lost_call"
    """Lost: an agent's call got no answer: its client disconnected, the engine failed, or it took
    too long."""
    DRIFTED = "drifted"
    """Lost: an agent changed a message of the policy, so that it continues another context."""
    NO_REWARD = "no_reward"
    """Lost: an agent ended without posting its reward."""
    AGENT_FAILED = "agent_failed"
    """Lost: an agent's program failed, or it never called the policy."""

    @property
    def is_lost(self) -> bool:
        """Whether the attempt failed without fault of the policy: it has no reward."""
        return self in _LOST


RewardBreakdown = dict[str, float]
"""The named terms of a reward; their sum is the scalar."""

TURNS_TERM = "turns"
"""Name of the reward term that was given turn by turn."""

_LOST = frozenset(
    {
        FinishReason.TIMEOUT,
        FinishReason.SANDBOX_LOST,
        FinishReason.LOST_CALL,
        FinishReason.DRIFTED,
        FinishReason.NO_REWARD,
        FinishReason.AGENT_FAILED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One policy message and the observation after it, as spans of `token_ids`."""

    action_start: int
    action_end: int
    observation_end: int
    """Equal to `action_end` without an observation."""
    reward: float = 0.0
    """The environment's reward for this action alone; the trajectory's term `turns` is the sum over
    its turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """A tool call and its result, failures included."""

    call: ToolCall
    content: str
    """The text that the policy reads."""
    succeeded: bool
    exists: bool = True
    """Whether the episode offers a tool of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One attempt at one task: tokens that the policy read (P, O) and sampled (A).

        token_ids          P P P A A O O A      two turns, one tool call
        action_mask        0 0 0 1 1 0 0 1
        behavior_logprobs  0 0 0 a b 0 0 c      nats; 0.0 where action_mask is 0

    P is the prompt, O an observation; log-probs are those of the policy that sampled.

    An episode that outgrew its context has several windows, each a context of its own: the later
    ones begin with what was kept of the earlier ones (K, read again and not sampled again).

        token_ids          P P P A A O O A | P P P K K K O O A      window_starts (0, 8)

    A teacher's demonstration is text until the warm start encodes it with the policy's own
    tokenizer: until then `token_ids`, `action_mask`, `behavior_logprobs` and `turns` are empty.
    """

    task_id: str
    group_id: str
    messages: tuple[Message, ...]
    tool_results: tuple[ToolResult, ...]
    """One result for each call, in order."""
    reward: RewardBreakdown
    """`outcome` is one of the terms, unless the environment was lost (`is_lost`): such an attempt
    was not scored, and has no terms."""
    answer: str | None
    finish_reason: FinishReason
    policy_version: int
    """Version of the policy that sampled it; the oldest of several."""
    token_ids: tuple[int, ...] = ()
    action_mask: tuple[int, ...] = ()
    behavior_logprobs: tuple[float, ...] = ()
    turns: tuple[Turn, ...] = ()
    window_starts: tuple[int, ...] = (0,)
    """Positions in `token_ids` where a window begins: no token sees a token before its window."""
    attempts: int = 1
    """Number of attempts of the episode (`episode.retry`): the reward is that of the last one, each
    began in a window of its own, and `turns` contains the reflections between them."""
    detour: str = ""
    """Kind of detour in a teacher's demonstration; empty without one."""
    token_versions: tuple[int, ...] = ()
    """Version of the policy that sampled each token, 0 where action_mask is 0; empty where
    `policy_version` sampled all of them."""
    spans: tuple[Span, ...] = field(default=(), compare=False)
    """What its time went into; empty where it was not measured. They differ from run to run, and
    are in no parquet file."""

    @property
    def total_reward(self) -> float:
        """Sum of the named terms."""
        return sum(self.reward.values())

    @property
    def is_right(self) -> bool:
        """Whether the family's verifier accepted the answer; False if it was not scored."""
        return self.reward.get("outcome", 0.0) > 0

    @property
    def is_lost(self) -> bool:
        """Whether the attempt failed without fault of the policy: it has no reward."""
        return self.finish_reason.is_lost

    @property
    def broke_sandbox(self) -> bool:
        """Whether a program of the policy ended its own sandbox: scored as a wrong answer."""
        return self.finish_reason is FinishReason.PROGRAM_BROKE_SANDBOX

    @property
    def windows(self) -> tuple[slice, ...]:
        """The windows as spans of `token_ids`; more than one if history was cut."""
        ends = (*self.window_starts[1:], len(self.token_ids))
        return tuple(slice(*span) for span in zip(self.window_starts, ends, strict=True))


_SCHEMA = pa.schema(
    [
        ("task_id", pa.string()),
        ("group_id", pa.string()),
        ("messages", pa.string()),
        ("tool_calls", pa.string()),
        ("reward", pa.string()),
        ("answer", pa.string()),
        ("finish_reason", pa.string()),
        ("policy_version", pa.int64()),
        ("token_ids", pa.list_(pa.int32())),
        ("action_mask", pa.list_(pa.int8())),
        ("behavior_logprobs", pa.list_(pa.float32())),
        ("turns", pa.list_(pa.list_(pa.int32()))),
        ("turn_rewards", pa.list_(pa.float64())),
        ("window_starts", pa.list_(pa.int32())),
        ("attempts", pa.int32()),
        ("detour", pa.string()),
        ("token_versions", pa.list_(pa.int64())),
    ]
)


def write_trajectories(path: Path, trajectories: Sequence[Trajectory]) -> int:
    """Write one row per trajectory and return how many there were."""
    pq.write_table(pa.Table.from_pylist([_row(t) for t in trajectories], schema=_SCHEMA), path)
    return len(trajectories)


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read a trajectory file, or a folder of them, whole.

    Raises:
        ArtifactError: as `iterate_trajectories`.
    """
    return list(iterate_trajectories(path))


_BATCH_ROWS = 256


def iterate_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file or folder; a few hundred rows are read at a time.

    Raises:
        ArtifactError: a file is not parquet or truncated, or the mask or log-probs of a row are not
            as long as its tokens.
    """
    number = 0
    try:
        rows = ds.dataset(path, schema=_SCHEMA, format="parquet")
        for batch in rows.to_batches(
            batch_size=_BATCH_ROWS, batch_readahead=1, fragment_readahead=1
        ):
            for row in batch.to_pylist():
                yield _trajectory(path, number, row)
                number += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise ArtifactError(
            f"{path}: not a readable parquet file of trajectories ({error}). "
            "Delete the artifact and run its stage again."
        ) from error


def call_entry(result: ToolResult) -> dict[str, object]:
    """Return a call and its result as one JSON object."""
    return {
        **result.call.model_dump(),
        "result": result.content,
        "succeeded": result.succeeded,
        **({} if result.exists else {"exists": False}),
    }


def _row(trajectory: Trajectory) -> dict[str, object]:
    calls = [call_entry(result) for result in trajectory.tool_results]
    messages = [message.model_dump() for message in trajectory.messages]
    return {
        "task_id": trajectory.task_id,
        "group_id": trajectory.group_id,
        "messages": json.dumps(messages, ensure_ascii=False),
        "tool_calls": json.dumps(calls, ensure_ascii=False),
        "reward": json.dumps(trajectory.reward),
        "answer": trajectory.answer,
        "finish_reason": trajectory.finish_reason.value,
        "policy_version": trajectory.policy_version,
        "token_ids": list(trajectory.token_ids),
        "action_mask": list(trajectory.action_mask),
        "behavior_logprobs": list(trajectory.behavior_logprobs),
        "turns": [[t.action_start, t.action_end, t.observation_end] for t in trajectory.turns],
        "turn_rewards": [turn.reward for turn in trajectory.turns],
        "window_starts": list(trajectory.window_starts),
        "attempts": trajectory.attempts,
        "detour": trajectory.detour,
        "token_versions": list(trajectory.token_versions),
    }


def _trajectory(path: Path, number: int, row: dict[str, object]) -> Trajectory:
    try:
        return _parsed(path, number, row)
    except (TypeError, KeyError, ValueError) as error:
        raise ArtifactError(
            f"{path}, row {number}: no trajectory ({error}). Is it another kind of file?"
        ) from error


def _parsed(path: Path, number: int, row: dict[str, object]) -> Trajectory:
    fields = dict(row)
    tokens = len(row["token_ids"])  # pyright: ignore[reportArgumentType] (arrow rows are untyped)
    for name in ("action_mask", "behavior_logprobs"):
        if len(row[name]) != tokens:  # pyright: ignore[reportArgumentType] (arrow rows are untyped)
            raise ArtifactError(
                f"{path}, row {number}: trajectory of task {row['task_id']} has {tokens} tokens "
                f"and another number of {name}. Write the engine's token_ids, or drop the row."
            )
        fields[name] = tuple(row[name])  # pyright: ignore[reportArgumentType]
    fields["token_ids"] = tuple(row["token_ids"])  # pyright: ignore[reportArgumentType]
    fields["token_versions"] = tuple(row["token_versions"] or ())  # pyright: ignore[reportArgumentType]
    fields["window_starts"] = tuple(row["window_starts"])  # pyright: ignore[reportArgumentType]
    fields["messages"] = tuple(Message(**m) for m in json.loads(str(row["messages"])))
    fields["tool_results"] = tuple(
        tool_result(entry) for entry in json.loads(str(fields.pop("tool_calls")))
    )
    fields["reward"] = json.loads(str(row["reward"]))
    fields["finish_reason"] = FinishReason(str(row["finish_reason"]))
    fields["turns"] = tuple(
        Turn(action_start=start, action_end=end, observation_end=seen, reward=reward)
        for (start, end, seen), reward in zip(
            row["turns"],  # pyright: ignore[reportArgumentType]
            fields.pop("turn_rewards"),  # pyright: ignore[reportArgumentType]
            strict=True,
        )
    )
    return Trajectory(**fields)  # pyright: ignore[reportArgumentType]


def tool_result(entry: Mapping[str, Any]) -> ToolResult:
    """Return the call and result that `call_entry` wrote."""
    call = ToolCall(
        name=entry["name"], arguments=entry["arguments"], call_id=entry.get("call_id", "")
    )
    return ToolResult(
        call=call,
        content=entry["result"],
        succeeded=entry["succeeded"],
        exists=entry.get("exists", True),
    )
