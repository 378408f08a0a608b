"""A head that scores steps: its body, how it is fitted to labels, and its folder.

Axes: b attempts of a batch, T token columns.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from espalier.config import OptimizerConfig, RewardModelConfig
from espalier.policy.loading import Policy, load_policy, save_policy
from espalier.records import ArtifactError, Tracker
from espalier.records.trajectory import Trajectory
from espalier.training.optimization import Updater
from espalier.training.reward_models.labels import LabelledAttempt, label_outcomes
from espalier.training.rl.models import Critic, Layout

Kind = Literal["process", "outcome"]
_HEAD, _ABOUT, _POLICY = "head.safetensors", "reward_model.json", "policy"


@dataclass(frozen=True, slots=True)
class RewardModel:
    """A critic's body and head, whose value is read as the log-odds that an attempt ends right."""

    kind: Kind
    critic: Critic
    layout: Layout

    def scores(self, attempts: Sequence[Trajectory]) -> list[list[float]]:
        """Return each turn's score, 0-1, by attempt; a turn without tokens repeats the last."""
        found: list[list[float]] = []
        with torch.no_grad():
            for attempt in attempts:
                if not attempt.turns:
                    found.append([])
                    continue
                turns = tuple(range(len(attempt.turns)))
                labelled = LabelledAttempt(
                    trajectory=attempt, turns=turns, shares=(0.0,) * len(turns)
                )
                logits_N = self._logits([labelled])
                found.append(torch.sigmoid(logits_N).tolist())
        return found

    def fit(
        self,
        attempts: Sequence[LabelledAttempt],
        config: RewardModelConfig,
        seed: int,
        tracker: Tracker,
    ) -> list[float]:
        """Fit to the labels by binary cross-entropy; return the loss of each step."""
        optimizer = OptimizerConfig(learning_rate=config.learning_rate)
        updater = Updater(self.critic, optimizer, config.steps)
        losses: list[float] = []
        self.critic.train()
        with tracker.progress("reward model", config.steps) as bar:
            for step in range(config.steps):
                rng = random.Random(f"reward model:{seed}:{step}")
                batch = rng.sample(attempts, min(config.attempts_per_step, len(attempts)))
                targets_N = torch.tensor([t for one in batch for t in one.targets(config.labels)])
                logits_N = self._logits(batch)
                loss = binary_cross_entropy_with_logits(logits_N, targets_N.to(logits_N.device))
                loss.backward()
                updater.apply(step)
                losses.append(float(loss.detach()))
                bar.advance(1, loss=losses[-1])
        self.critic.eval()
        return losses

    def _logits(self, attempts: Sequence[LabelledAttempt]) -> Tensor:
        """Return [N]: the head's output at each labelled step, attempt by attempt."""
        batch = self.layout.batch([one.sequence for one in attempts])
        width = max(len(one.trajectory.token_ids) for one in attempts)
        with self.layout.hardware.precision():
            values_bT = batch.dense(self.critic(batch), width=width)
        rows = [row for row, one in enumerate(attempts) for _ in one.turns]
        columns = [place for one in attempts for place in one.positions]
        return values_bT[rows, columns]

    def save(self, policy: Policy, directory: Path) -> None:
        """Write the model into an artifact's folder, the body as a policy directory."""
        body = copy.deepcopy(policy.model)
        body.base_model.load_state_dict(self.critic.body.state_dict())
        save_policy(Policy(body, policy.tokenizer), directory / _POLICY)
        head = {name: value.contiguous() for name, value in self.critic.head.state_dict().items()}
        save_file(head, directory / _HEAD)
        (directory / _ABOUT).write_text(json.dumps({"kind": self.kind}) + "\n", encoding="utf-8")


def load_reward_model(directory: Path, kind: Kind, layout: Layout) -> RewardModel:
    """Read the folder that `espalier reward-model` wrote.

    Raises:
        ArtifactError: there is no such folder, or its model is of the other kind.
        PolicyError: its body cannot be loaded.
    """
    about = directory / _ABOUT
    if not about.is_file():
        raise ArtifactError(
            f"{directory}: not a reward model (no {_ABOUT}); train one with "
            "`espalier reward-model RUN --out DIR`"
        )
    found = json.loads(about.read_text(encoding="utf-8"))["kind"]
    if found != kind:
        raise ArtifactError(f"{directory}: a model of kind {found}, where one of {kind} is needed")
    critic = Critic(load_policy(directory / _POLICY).model)
    critic.head.load_state_dict(load_file(directory / _HEAD))
    return RewardModel(kind, critic.eval().to(layout.hardware.device), layout)


def area_under_curve(scores: Sequence[float], truths: Sequence[bool]) -> float:
    """Return the chance that a right attempt scores above a wrong one, ties counted half.

    This is the Mann-Whitney statistic; NaN if all attempts are right, or none is.
    """
    right = [score for score, truth in zip(scores, truths, strict=True) if truth]
    wrong = [score for score, truth in zip(scores, truths, strict=True) if not truth]
    if not right or not wrong:
        return float("nan")
    above = sum((a > b) + 0.5 * (a == b) for a in right for b in wrong)
    return above / (len(right) * len(wrong))


def outcome_figures(model: RewardModel, attempts: Sequence[Trajectory]) -> dict[str, float]:
    """Return how far the last step's score agrees with the rule, on attempts not fitted to."""
    judged = [one.trajectory for one in label_outcomes(attempts)]
    scores = [steps[-1] for steps in model.scores(judged)]
    truths = [one.is_right for one in judged]
    agreed = sum((score >= 0.5) == truth for score, truth in zip(scores, truths, strict=True))
    return {
        "dev_attempts": float(len(judged)),
        "dev_right_share": sum(truths) / max(1, len(truths)),
        "auc": area_under_curve(scores, truths),
        "agreement": agreed / max(1, len(judged)),
    }
