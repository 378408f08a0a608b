"""A teacher's trajectories as training sequences of one policy's tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from espalier.dialects.dialect import Dialect
from espalier.records import AgentText, DataError, FinalAnswer, Message, Task, ToolCalls, action_of
from espalier.records.trajectory import Trajectory
from espalier.training.packing import TrainingSequence


def encode_demonstration(
    trajectory: Trajectory, tasks: Mapping[str, Task], dialect: Dialect
) -> TrainingSequence:
    """Encode message by message: prompt and observations masked, actions trained on.

    Raises:
        DataError: the trajectory answers a task that is not in `tasks`.
    """
    task = tasks.get(trajectory.task_id)
    if task is None:
        raise DataError(
            f"trajectory of task {trajectory.task_id}: no such training task. "
            "Trajectories and tasks must come from the same synthesis run."
        )
    pieces = [
        action_of(message) if message.role == "assistant" else message.content
        for message in trajectory.messages[len(task.prompt) :]
    ]
    return encode_pieces(task.prompt, pieces, dialect)


def encode_negative(negative: AgentText, dialect: Dialect) -> TrainingSequence:
    """Encode as a demonstration: only what the policy writes is trained on."""
    return _encoded(
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


def encode_pieces(
    prompt: tuple[Message, ...],
    pieces: Iterable[ToolCalls | FinalAnswer | str],
    dialect: Dialect,
) -> TrainingSequence:
    """Encode actions and tool results (str) in order; only actions are trained on."""
    return _encoded(
        prompt,
        [
            (dialect.result_ids((Message(role="tool", content=piece),)), False)
            if isinstance(piece, str)
            else (dialect.action_ids(piece), True)
            for piece in pieces
        ],
        dialect,
    )


def _encoded(
    prompt: tuple[Message, ...],
    pieces: Iterable[tuple[tuple[int, ...], bool]],
    dialect: Dialect,
) -> TrainingSequence:
    """Join pieces of token ids; those marked True are trained on."""
    token_ids = list(dialect.prompt_ids(prompt))
    mask = [0] * len(token_ids)
    for ids, written in pieces:
        token_ids.extend(ids)
        mask.extend([int(written)] * len(ids))
    return TrainingSequence(token_ids=tuple(token_ids), loss_mask=tuple(mask))
