"""A teacher's trajectories as training sequences of one policy's tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby

from espalier.dialects.dialect import Dialect
from espalier.records import AgentText, DataError, FinalAnswer, Message, Task, ToolCalls, action_of
from espalier.records.trajectory import Trajectory
from espalier.training.packing import TrainingSequence

PromptOf = Callable[[Task, Dialect], tuple[Message, ...]]
"""A function that returns what a policy reads at the beginning of a task's episode."""


def prompt_alone(task: Task, dialect: Dialect) -> tuple[Message, ...]:
    """Return the prompt of a task, without anything recalled from memory."""
    del dialect
    return task.prompt


def encode_demonstration(
    trajectory: Trajectory,
    tasks: Mapping[str, Task],
    dialect_of: Callable[[Task], Dialect],
    prompt_of: PromptOf = prompt_alone,
) -> TrainingSequence:
    """Encode message by message: prompt and observations masked, actions trained on.

    Args:
        trajectory: trajectory of a teacher.
        tasks: the tasks by their id.
        dialect_of: returns the policy's dialect, with the tools of a task.
        prompt_of: returns the messages that replace the task's prompt.

    Raises:
        DataError: the trajectory answers a task that is not in `tasks`.
    """
    task = tasks.get(trajectory.task_id)
    if task is None:
        raise DataError(
            f"trajectory of task {trajectory.task_id}: no such training task. "
            "Trajectories and tasks must come from the same synthesis run."
        )
    # consecutive observations are encoded together, as in an episode
    pieces: list[Piece] = []
    behind = trajectory.messages[len(task.prompt) :]
    for acts, run in groupby(behind, key=lambda message: message.role == "assistant"):
        messages = tuple(run)
        pieces.extend(map(action_of, messages) if acts else [messages])
    dialect = dialect_of(task)
    return encode_pieces(prompt_of(task, dialect), pieces, dialect)


def encode_negative(negative: AgentText, dialect: Dialect) -> TrainingSequence:
    """Encode like a demonstration: only the policy's messages are trained on."""
    return encode_ids(
        negative.prompt,
        [
            (dialect.text_ids(piece.content), True)
            if piece.role == "assistant"
            else (dialect.result_ids((piece,)), False)
            for piece in negative.pieces
        ],
        dialect,
    )


def encode_text(text: AgentText, dialect: Dialect) -> TrainingSequence:
    """Encode for next-token training on every token."""
    token_ids = encode_negative(text, dialect).token_ids
    return TrainingSequence(token_ids=token_ids, loss_mask=(1,) * len(token_ids))


Piece = ToolCalls | FinalAnswer | tuple[Message, ...] | str
"""An action, messages that are observed together, or the text of one tool result."""


def encode_pieces(
    prompt: tuple[Message, ...], pieces: Iterable[Piece], dialect: Dialect
) -> TrainingSequence:
    """Encode actions and observations in order; only actions are trained on."""
    return encode_ids(prompt, [_piece_ids(piece, dialect) for piece in pieces], dialect)


def _piece_ids(piece: Piece, dialect: Dialect) -> tuple[tuple[int, ...], bool]:
    match piece:
        case ToolCalls() | FinalAnswer():
            return dialect.action_ids(piece), True
        case str():
            return dialect.result_ids((Message(role="tool", content=piece),)), False
        case _:
            return dialect.result_ids(piece), False


def encode_ids(
    prompt: tuple[Message, ...],
    pieces: Iterable[tuple[tuple[int, ...], bool]],
    dialect: Dialect,
) -> TrainingSequence:
    """Encode a prompt, and append pieces of token ids; pieces marked True are trained on."""
    token_ids = list(dialect.prompt_ids(prompt))
    mask = [0] * len(token_ids)
    for ids, written in pieces:
        token_ids.extend(ids)
        mask.extend([int(written)] * len(ids))
    return TrainingSequence(token_ids=tuple(token_ids), loss_mask=tuple(mask))
