"""A trajectory as turns: what the policy read, then what it wrote, as messages and as tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from espalier.records import ArtifactError, JsonObject, Message, Task, ToolCall, ToolSpec
from espalier.records.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTurn:
    """What was read since the message before, and the message that was written then.

    token_ids   P P P A A O O A       turns   read (P P P) wrote (A A), read (O O) wrote (A)
    """

    window: int
    """Number of the context that it was written in."""
    read: tuple[Message, ...]
    wrote: Message | None
    """None in the last one, where something was read that the policy did not answer."""
    context_ids: tuple[int, ...] = ()
    """All tokens that the policy saw when it wrote, from the beginning of its window."""
    read_ids: tuple[int, ...] = ()
    """The end of `context_ids`: what is new since the last message of the same window."""
    wrote_ids: tuple[int, ...] = ()
    """Sampled, every one of them; nothing else in the turn was."""
    logprobs: tuple[float, ...] = ()
    """Of `wrote_ids`, in nats."""
    reward: float = 0.0


class ExportedTrajectory(NamedTuple):
    """A trajectory with what is known about its task."""

    row: int
    """Its number in the artifact, from 0."""
    trajectory: Trajectory
    turns: tuple[ExportedTurn, ...]
    task: Task | None
    """None where the artifact does not come with its tasks."""
    tools: tuple[ToolSpec, ...] | None
    """None where nobody knows which tools were offered."""

    @property
    def export_id(self) -> str:
        """Its id in the file."""
        return f"{self.row:08d}-{self.trajectory.task_id}"

    @property
    def family(self) -> str:
        """Name of its family; empty where it is not known."""
        return self.task.environment if self.task else ""


def exported_turns(trajectory: Trajectory, task: Task | None) -> tuple[ExportedTurn, ...]:
    """The turns of a trajectory, whose calls and tools' messages carry ids.

    Raises:
        ArtifactError: it has more sampled messages than messages of the assistant.
    """
    messages = _identified(trajectory.messages)
    if not trajectory.token_ids:
        return tuple(_text_turns(messages, _prompt_length(messages, task)))
    wrote = [n for n, message in enumerate(messages) if message.role == "assistant"]
    count = len(trajectory.turns)
    if len(wrote) < count:
        raise ArtifactError(
            f"trajectory of task {trajectory.task_id}: {count} messages were sampled, but "
            f"{len(wrote)} are told. Write it anew, or drop the row"
        )
    # messages of the assistant that nobody sampled are examples, and stand before the first turn
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
    """The messages, each call with an id of its own, and each result with that of its call.

    A tool's message that answers no call, as a request for a summary, becomes one of the user.
    """
    found: list[Message] = []
    taken: set[str] = set()
    waiting: list[tuple[str, str]] = []
    """Of the last message's calls that have no result yet: the id as it was, and as it is."""
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
    # nine letters and digits, which Mistral's chat template insists on
    own = call.call_id if call.call_id and call.call_id not in taken else f"call{len(taken):05d}"
    while own in taken:
        own += "0"
    taken.add(own)
    return call.model_copy(update={"call_id": own})


def names_of_calls(turns: Sequence[ExportedTurn]) -> dict[str, str]:
    """Name of the tool that each call was for, by the call's id."""
    return {
        call.call_id: call.name for turn in turns if turn.wrote for call in turn.wrote.tool_calls
    }


def task_facts(exported: ExportedTrajectory) -> JsonObject:
    """What is told of the task beside its prompt: never its gold answer."""
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
    """How the attempt ended; a reward that is missing is left out, and never 0."""
    trajectory = exported.trajectory
    facts: JsonObject = {
        "task_id": trajectory.task_id,
        "group_id": trajectory.group_id,
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


def shortest(logprobs: Sequence[float]) -> list[float]:
    """Numbers of 32 bits in the fewest digits that tell them apart."""
    return [float(f"{one:.9g}") for one in logprobs]
