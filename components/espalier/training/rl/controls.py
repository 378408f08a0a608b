"""What responses to health notices may change in a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from espalier.curriculum.pool import TaskPool
from espalier.training.rl.progress import LoopProgress
from espalier.training.rl.publishing import Publisher
from espalier.training.rl.sampling import StepSampler
from espalier.training.rl.update import PolicyUpdate


class LoopControls:
    """The `Controls` of one loop; every process of it makes the same changes."""

    def __init__(
        self,
        update: PolicyUpdate,
        pool: TaskPool,
        progress: LoopProgress,
        publisher: Publisher,
        sampler: StepSampler,
    ) -> None:
        self._update = update
        self._entropy_coefficient = update.entropy_coefficient
        self._pool = pool
        self._sampler = sampler
        self._progress = progress
        self._publisher = publisher

    def scale_rate(self, scale: float) -> None:
        """Multiply the policy's learning rate."""
        self._update.updater.rate_scale = scale

    def quarantine(self, task_ids: Sequence[str]) -> bool:
        """Draw these tasks no more, if two others are left."""
        return self._pool.quarantine(task_ids)

    def verifiers(self) -> Mapping[str, str]:
        """Return task id -> FAMILY/KIND of its verifier, for each task in the pool."""
        tasks = self._pool.tasks
        return {task.task_id: f"{task.environment}/{task.verifier.kind}" for task in tasks}

    def leave_out(self, names: Sequence[str]) -> None:
        """Reward attempts without these terms; groups that have one are not replayed."""
        self._sampler.left_out.clear()
        self._sampler.left_out.update(names)

    def skip_beyond(self, mismatch_kl: float) -> None:
        """Apply no gradient in a step whose `mismatch_kl` is larger."""
        self._update.max_mismatch_kl = mismatch_kl

    def add_entropy(self, coefficient: float) -> None:
        """Set the coefficient of the policy's entropy to the profile's and this."""
        self._update.entropy_coefficient = self._entropy_coefficient + coefficient

    def scale_kl(self, scale: float) -> None:
        """Multiply the coefficient of the KL penalty."""
        self._update.kl_scale = scale

    def gate(self) -> bool:
        """End a step's updates where the gradient of the output head surges."""
        self._update.head_gate.is_on = self._update.can_gate
        return self._update.can_gate

    def ungate(self) -> None:
        """Make all updates again."""
        self._update.head_gate.is_on = False

    def widen(self) -> bool:
        """Draw tasks inside and outside of the band."""
        return self._pool.widen()

    def narrow(self) -> None:
        """Draw by the band again."""
        self._pool.narrow()

    def return_to_best(self) -> None:
        """Load and publish the weights of the best dev score; the optimizer's moments are lost.

        They belong to the weights that were left.
        """
        self._progress.take_best()
        self._update.updater.forget_moments()
        self._publisher.publish(len(self._progress.history))
