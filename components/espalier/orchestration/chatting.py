"""Talking to a trained policy: one question at a time, over the whole knowledge."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from espalier.config import Profile
from espalier.determinism import prepare_torch
from espalier.environments import family_of
from espalier.orchestration.finished_run import open_finished_run
from espalier.records import Message, open_artifact
from espalier.records.trajectory import Trajectory
from espalier.rollout.roller import TrajectorySampler


class Conversation:
    """Asks a policy questions that have no gold answer; every question stands alone."""

    def __init__(self, roller: TrajectorySampler, profile: Profile) -> None:
        self._roller = roller
        self._family = family_of(profile)
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
        with family_of(run.profile).environments(run.folder("knowledge")) as environments_over:
            yield cls(Roller.open(policy_dir, environments_over("full"), run.profile), run.profile)

    def ask(self, question: str) -> Trajectory:
        """What the policy did to answer, greedily."""
        task = self._family.chat_task(question)
        (trajectory,) = self._roller.roll_out([task], samples=1, temperature=0.0, seed=self._seed)
        return trajectory


def transcript(trajectory: Trajectory) -> str:
    """The episode, one line a message, and its answer last."""
    speakers = {"user": "question", "assistant": "policy", "tool": "found", "system": "system"}
    lines = [
        f"{speakers[message.role]:<9} {shown(message)}"
        for message in trajectory.messages
        if message.role != "user"
    ]
    answer = trajectory.answer or f"none ({trajectory.finish_reason.value})"
    return "\n".join([*lines, f"{'answer':<9} {answer}"])


def shown(message: Message) -> str:
    """A message in one line: its thought, its calls, its text."""
    calls = [
        f"{call.name}({', '.join(f'{name}={value}' for name, value in call.arguments.items())})"
        for call in message.tool_calls
    ]
    thought = [f"({message.thought})"] if message.thought else []
    return " ".join((*thought, *calls, *filter(None, [message.content])))
