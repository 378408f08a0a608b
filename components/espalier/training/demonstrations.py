"""A teacher's trajectories as training sequences of one policy's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping

from espalier.artifacts import DataError
from espalier.policy.rendering import Rendering
from espalier.rollout.trajectory import Trajectory
from espalier.tasks import Task
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
    token_ids = list(rendering.prompt_ids(task.prompt))
    mask = [0] * len(token_ids)
    for message in trajectory.messages[len(task.prompt) :]:
        is_action = message.role == "assistant"
        encode = rendering.action_ids if is_action else rendering.observation_ids
        piece = encode(message.content)
        token_ids.extend(piece)
        mask.extend([int(is_action)] * len(piece))
    return TrainingSequence(token_ids=tuple(token_ids), loss_mask=tuple(mask))
