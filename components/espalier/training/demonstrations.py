"""A teacher's trajectories as training sequences of one policy's tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from espalier.artifacts import DataError
from espalier.policy.rendering import Rendering
from espalier.rollout.trajectory import Trajectory
from espalier.tasks import AgentText, Message, Task
from espalier.training.packing import TrainingSequence


def encode_demonstration(
    trajectory: Trajectory, tasks: Mapping[str, Task], rendering: Rendering
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
        (message.content, message.role == "assistant")
        for message in trajectory.messages[len(task.prompt) :]
    ]
    return encode_pieces(task.prompt, pieces, rendering)


def encode_negative(negative: AgentText, rendering: Rendering) -> TrainingSequence:
    """Encode as a demonstration is: what the policy writes is trained on, and nothing else."""
    pieces = [(message.content, message.role == "assistant") for message in negative.pieces]
    return encode_pieces(negative.prompt, pieces, rendering)


def encode_text(text: AgentText, rendering: Rendering) -> TrainingSequence:
    """Encode for next-token training: every token counts, whoever writes it."""
    token_ids = encode_negative(text, rendering).token_ids
    return TrainingSequence(token_ids=token_ids, loss_mask=(1,) * len(token_ids))


def encode_pieces(
    prompt: tuple[Message, ...], pieces: Iterable[tuple[str, bool]], rendering: Rendering
) -> TrainingSequence:
    """Encode texts in their order; only those that the policy writes (True) are trained on."""
    token_ids = list(rendering.prompt_ids(prompt))
    mask = [0] * len(token_ids)
    for text, written in pieces:
        piece = (rendering.action_ids if written else rendering.observation_ids)(text)
        token_ids.extend(piece)
        mask.extend([int(written)] * len(piece))
    return TrainingSequence(token_ids=tuple(token_ids), loss_mask=tuple(mask))
