"""A trajectory as turns: what the policy read, then what it wrote, as messages and as tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from espalier.records import ArtifactError, JsonObject, Message, Task, ToolCall, ToolSpec
from espalier.records.episodes import EpisodePlace
from espalier.records.streams import STREAMS_FOLDER
from espalier.records.trajectory import ToolResult, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTurn:
    """One message of the policy, and what it read since its message before.

    token_ids   P P P A A O O A       turns   read (P P P) wrote (A A), read (O O) wrote (A)
    """

    window: int
    """Number of the context window in which the message was written."""
    read: tuple[Message, ...]
    wrote: Message | None
    """None in a last turn that the policy read and did not answer."""
    context_ids: tuple[int, ...] = ()
    """All tokens that the policy saw when it wrote, from the start of its window."""
    read_ids: tuple[int, ...] = ()
    """The end of `context_ids`: the tokens since the last message in the same window."""
    wrote_ids: tuple[int, ...] = ()
    """The sampled tokens of the turn, all of them and no others."""
    logprobs: tuple[float, ...] = ()
    """Log-probs of `wrote_ids`, in nats."""
    reward: float = 0.0


class ExportedTrajectory(NamedTuple):
    """A trajectory with what is known about its task."""

    row: int
    """Row number in the artifact, from 0."""
    trajectory: Trajectory
    turns: tuple[ExportedTurn, ...]
    task: Task | None
    """None if the artifact has no tasks beside it."""
    tools: tuple[ToolSpec, ...] | None
    """None if it is unknown which tools were offered."""
    place: EpisodePlace | None = None
    """Its step, number and time; None if the source does not tell them."""
    origin: str = ""
    """Where the artifact lies, from its run on."""

    @property
    def export_id(self) -> str:
        """The trajectory's id in the exported file."""
        return f"{self.row:08d}-{self.trajectory.task_id}"

    @property
    def family(self) -> str:
        """Name of the task's family; empty if unknown."""
        return self.task.environment if self.task else ""


def exported_turns(trajectory: Trajectory, task: Task | None) -> tuple[ExportedTurn, ...]:
    """Return the turns of a trajectory; all calls and tool messages in them have ids.

    Raises:
        ArtifactError: there are more sampled messages than assistant messages.
    """
    messages = _identified(trajectory.messages)
    if not trajectory.token_ids:
        return tuple(_text_turns(messages, _prompt_length(messages, task)))
    wrote = [n for n, message in enumerate(messages) if message.role == "assistant"]
    count = len(trajectory.turns)
    if len(wrote) < count:
        raise ArtifactError(
            f"trajectory of task {trajectory.task_id}: {count} messages were sampled, but "
            f"it has only {len(wrote)} assistant messages. Write it again, or drop the row"
        )
    # assistant messages that were not sampled are examples, and come before the first turn
    return tuple(_token_turns(trajectory, messages, wrote[len(wrote) - count :]))


def _prompt_length(messages: Sequence[Message], task: Task | None) -> int:
    prompt = task.prompt if task else ()
    return len(prompt) if tuple(messages[: len(prompt)]) == prompt else 0


def _text_turns(messages: Sequence[Message], prompt: int) -> Iterator[ExportedTurn]:
    begin = 0
    for number, message in enumerate(messages):
        if number >= prompt and message.role == "assistant":
            yield ExportedTurn(window=0, read=tuple(messages[begin:number]), wrote=message)
            begin = number + 1
    if begin < len(messages):
        yield ExportedTurn(window=0, read=tuple(messages[begin:]), wrote=None)


def _token_turns(
    trajectory: Trajectory, messages: Sequence[Message], wrote: Sequence[int]
) -> Iterator[ExportedTurn]:
    ids, told, at, window = trajectory.token_ids, 0, 0, 0
    windows = trajectory.windows
    for turn, number in zip(trajectory.turns, wrote, strict=True):
        while turn.action_start >= windows[window].stop:
            if at < windows[window].stop:
                yield _unanswered(trajectory, window, at, ())
            window += 1
            at = windows[window].start
        span = slice(turn.action_start, turn.action_end)
        yield ExportedTurn(
            window=window,
            read=tuple(messages[told:number]),
            wrote=messages[number],
            context_ids=ids[windows[window].start : turn.action_start],
            read_ids=ids[at : turn.action_start],
            wrote_ids=ids[span],
            logprobs=trajectory.behavior_logprobs[span],
            reward=turn.reward,
        )
        told, at = number + 1, turn.action_end
    rest = tuple(messages[told:])
    for last in range(window, len(windows)):
        at = max(at, windows[last].start)
        if rest or at < windows[last].stop:
            yield _unanswered(trajectory, last, at, rest)
        rest = ()


def _unanswered(
    trajectory: Trajectory, window: int, at: int, read: tuple[Message, ...]
) -> ExportedTurn:
    whole = trajectory.windows[window]
    ids = trajectory.token_ids
    return ExportedTurn(
        window=window,
        read=read,
        wrote=None,
        context_ids=ids[whole],
        read_ids=ids[at : whole.stop],
    )


def _identified(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with a unique id for each call, and the same id for its result.

    A tool message that answers no call, such as a request for a summary, becomes a user message.
    """
    found: list[Message] = []
    taken: set[str] = set()
    waiting: list[tuple[str, str]] = []
    """The last message's calls that have no result yet: their former id and their new id."""
    for message in messages:
        match message.role:
            case "assistant":
                calls = tuple(_with_own_id(call, taken) for call in message.tool_calls)
                waiting = [
                    (before.call_id, call.call_id)
                    for before, call in zip(message.tool_calls, calls, strict=True)
                ]
                found.append(message.model_copy(update={"tool_calls": calls}))
            case "tool" if waiting:
                at = [before for before, _ in waiting]
                place = at.index(message.call_id) if message.call_id in at else 0
                found.append(message.model_copy(update={"call_id": waiting.pop(place)[1]}))
            case "tool":
                found.append(Message(role="user", content=message.content))
            case _:
                found.append(message)
    return found


def _with_own_id(call: ToolCall, taken: set[str]) -> ToolCall:
    # nine letters and digits, as Mistral's chat template requires
    own = call.call_id if call.call_id and call.call_id not in taken else f"call{len(taken):05d}"
    while own in taken:
        own += "0"
    taken.add(own)
    return call.model_copy(update={"call_id": own})


def names_of_calls(turns: Sequence[ExportedTurn]) -> dict[str, str]:
    """Return the tool name of each call, by call id."""
    return {
        call.call_id: call.name for turn in turns if turn.wrote for call in turn.wrote.tool_calls
    }


def model_name(origin: str) -> str:
    """Return a name for the policy that an artifact's attempts are of: demo-evaluation-trained."""
    parts = [part for part in origin.split("/") if part and part != STREAMS_FOLDER]
    return "-".join(parts) or "policy"


def results_of_calls(exported: ExportedTrajectory) -> dict[str, ToolResult]:
    """Return the result of each call, by call id; {} if not every call has one."""
    calls = [
        call.call_id for turn in exported.turns if turn.wrote for call in turn.wrote.tool_calls
    ]
    results = exported.trajectory.tool_results
    return dict(zip(calls, results, strict=True)) if len(calls) == len(results) else {}


def as_json(exported: ExportedTrajectory, value: object) -> str:
    """Return a part of an exported file as JSON.

    Raises:
        ArtifactError: a number in it is not finite, which JSON cannot hold.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise ArtifactError(
            f"{exported.origin}, row {exported.row}: the trajectory of task "
            f"{exported.trajectory.task_id} has a log-prob or reward that is not finite, which "
            "JSON cannot hold. Drop the row"
        ) from error


def task_facts(exported: ExportedTrajectory) -> JsonObject:
    """Return the facts about a task beside its prompt, without its gold answer."""
    if exported.task is None:
        return {}
    metadata = exported.task.metadata
    return {
        "family": exported.task.environment,
        "split": metadata.split,
        "source": metadata.source,
        "difficulty": metadata.difficulty,
    }


def attempt_facts(exported: ExportedTrajectory) -> JsonObject:
    """Return how the episode ended; a missing reward is left out, not written as 0."""
    trajectory = exported.trajectory
    facts: JsonObject = {
        "task_id": trajectory.task_id,
        "group_id": trajectory.group_id,
        **place_facts(exported.place),
        "policy_version": trajectory.policy_version,
        "finish_reason": trajectory.finish_reason.value,
        "answer": trajectory.answer,
        "is_lost": trajectory.is_lost,
        "detour": trajectory.detour,
    }
    if trajectory.is_lost:
        return facts
    terms: JsonObject = dict(trajectory.reward)
    return facts | {
        "is_right": trajectory.is_right,
        "reward": trajectory.total_reward,
        "reward_terms": terms,
    }


def place_facts(place: EpisodePlace | None) -> JsonObject:
    """Return step and number of an attempt, as far as they are known."""
    if place is None:
        return {}
    sample: JsonObject = {"sample": place.sample}
    return sample | ({"step": place.step} if place.step else {})


def shortest(logprobs: Sequence[float]) -> list[float]:
    """Return 32-bit floats in the fewest digits that distinguish them."""
    return [float(f"{one:.9g}") for one in logprobs]
