"""Talking to a trained policy: one question at a time, over the whole knowledge."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from espalier.artifacts import open_artifact
from espalier.config import Profile
from espalier.environments import opened_environments
from espalier.orchestration.finished_run import open_finished_run
from espalier.rollout.roller import RollsOut
from espalier.rollout.trajectory import Trajectory
from espalier.steps.determinism import prepare_torch
from espalier.tasks import Message, Task, TaskMetadata, Verifier


class Conversation:
    """Asks a policy questions that have no gold answer; every question stands alone."""

    def __init__(self, roller: RollsOut, profile: Profile) -> None:
        self._roller = roller
        self._environment = profile.environment.name
        self._seed = profile.seed

    @classmethod
    @contextmanager
    def opened(cls, run_dir: Path, policy_dir: Path | None = None) -> Generator[Self]:
        """A conversation with the trained policy of `run_dir`, or with another policy.

        Args:
            run_dir: the run whose knowledge is searched and whose episode limits hold.
            policy_dir: any Hugging Face directory; None means the run's trained policy.

        Raises:
            ArtifactError: the run has not come that far, or was damaged.
            PolicyError: not a policy directory.
        """
        from espalier.rollout.roller import Roller

        run = open_finished_run(run_dir)
        prepare_torch(run.profile.threads)
        open_artifact(run.folder("knowledge"))
        if policy_dir is None:
            open_artifact(run.folder("trained_policy"))
            policy_dir = run.folder("trained_policy") / "policy"
        with opened_environments(run.profile, run.folder("knowledge")) as environments_over:
            yield cls(Roller.open(policy_dir, environments_over("full"), run.profile), run.profile)

    def ask(self, question: str) -> Trajectory:
        """What the policy did to answer, greedily."""
        task = Task(
            task_id="chat",
            prompt=(Message(role="user", content=question),),
            environment=self._environment,
            verifier=Verifier(gold=("",)),
            metadata=TaskMetadata(family="chat", split="heldout", hops=1, source="chat"),
        )
        (trajectory,) = self._roller.roll_out([task], samples=1, temperature=0.0, seed=self._seed)
        return trajectory


def transcript(trajectory: Trajectory) -> str:
    """The episode, one line a message, and its answer last."""
    speakers = {"user": "question", "assistant": "policy", "tool": "found", "system": "system"}
    lines = [
        f"{speakers[message.role]:<9} {message.content}"
        for message in trajectory.messages
        if message.role != "user"
    ]
    answer = trajectory.answer or f"none ({trajectory.finish_reason.value})"
    return "\n".join([*lines, f"{'answer':<9} {answer}"])
