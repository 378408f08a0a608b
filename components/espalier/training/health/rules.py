"""The detectors of a run, one rule each, with thresholds that the library of failing runs fixed.

`python -m tests.benchmarks.failures score` prints what each flags, and how early. A new rule is an
entry of `DETECTORS`, and its name in `training.health.ignore`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from espalier.config import TrainingConfig
from espalier.records.step_figures import UNKNOWN_TOOL, UNREAD_CALLS
from espalier.records.trajectory import Trajectory
from espalier.training.attempt_figures import (
    is_disputed,
    is_grounded,
    is_truncated,
    repeated_tokens,
    repeats_a_call,
)
from espalier.training.health.detector import (
    Beyond,
    Detector,
    Drift,
    Evidence,
    Finding,
    Row,
    by_attempt,
)

_UNKNOWN = f"{UNREAD_CALLS}/{UNKNOWN_TOOL}"
_RATE = "training.optimizer.learning_rate"


def learns(start: Row, row: Row) -> bool:
    """Return whether more attempts are right than in the beginning, which excuses a change."""
    return row.get("pass_rate", 0.0) > start.get("pass_rate", 0.0) + 0.05


def _calls_unknown(attempt: Trajectory) -> float:
    return float(any(not result.exists for result in attempt.tool_results))


def _calls_fail(attempt: Trajectory) -> float:
    return float(sum(not result.succeeded for result in attempt.tool_results))


def _is_silent(attempt: Trajectory) -> float:
    return float(not attempt.tool_results)


def _length(attempt: Trajectory) -> float:
    return float(sum(attempt.action_mask))


def _is_ungrounded(attempt: Trajectory) -> float:
    return float(attempt.answer is not None and not is_grounded(attempt))


def _is_right_by_itself(attempt: Trajectory) -> float:
    return float(attempt.is_right) * (1.0 + _is_ungrounded(attempt))


def _disputed(group: Sequence[Trajectory]) -> list[float]:
    """Show the attempts whose answer was judged both right and wrong."""
    return [
        float(any(is_disputed((one, other)) for other in group if other.is_right != one.is_right))
        for one in group
    ]


def _all_alike(group: Sequence[Trajectory]) -> list[float]:
    """Show the groups of several attempts that are all right or all wrong."""
    return [float(len(group) > 1 and len({one.is_right for one in group}) == 1)] * len(group)


def _equally_rewarded(group: Sequence[Trajectory]) -> list[float]:
    """Show the groups of several attempts that all have the same reward."""
    return [float(len(group) > 1 and len({one.total_reward for one in group}) == 1)] * len(group)


def _is_paid_though_wrong(attempt: Trajectory) -> float:
    return 0.0 if attempt.is_right else max(0.0, attempt.total_reward)


@dataclass
class VerdictShift:
    """The share of right attempts jumps by more than sampling and one update explain.

    A step is compared with the nearest of the three before it, so that a rise over several steps is
    no jump. The bound is `deviations` standard deviations of a share of that many attempts, taken
    as if `_ALIKE` attempts at one task were one, and at least `least`; the next step has to stay
    there.
    """

    least: float = 0.25
    deviations: float = 3.0
    name: str = "verdict_shift"
    figure: str = "pass_rate"
    key: str = "environment"
    shows: Evidence | None = None
    _rates: list[float] = field(init=False, default_factory=list)
    _attempts: float = field(init=False, default=0.0)
    _suspect: tuple[int, float, float] | None = field(init=False, default=None)
    worst: float = field(init=False, default=0.0)

    @property
    def is_active(self) -> bool:
        """Whether the fault goes on: never, as a jump is one moment."""
        return False

    def observe(self, row: Row) -> Finding | None:
        """Take the figures of the next step."""
        rate, attempts = row["pass_rate"], row["rollouts"] - self._attempts
        self._attempts = row["rollouts"]
        if attempts < 1 or not math.isfinite(rate):
            return None
        found = self._verdict(int(row["step"]), rate)
        if found is None and self._suspect is None and len(self._rates) >= _BEFORE:
            before = self._rates[-_BEFORE:]
            usual = min(max(rate, min(before)), max(before))
            inside = min(0.9, max(0.1, usual))
            spread = math.sqrt(inside * (1 - inside) / max(1.0, attempts / _ALIKE))
            far = abs(rate - usual) / max(self.least, self.deviations * spread)
            if far > 1:
                self._suspect = (int(row["step"]), usual, rate - usual)
                return None
        self._rates.append(rate)
        return found

    def _verdict(self, step: int, rate: float) -> Finding | None:
        if self._suspect is None:
            return None
        since, usual, moved = self._suspect
        self._suspect = None
        stays = (rate - usual) / moved
        self.worst = max(self.worst, stays)
        if stays < _STAYS:
            return None
        self._rates.clear()
        return Finding(
            since,
            f"pass_rate jumped from {usual:.2f} to {usual + moved:.2f} in step {since} and is "
            f"{rate:.2f} in step {step}, more than one update can teach: the verifier, a tool or "
            "the tasks have changed",
        )


_BEFORE, _ALIKE, _STAYS = 3, 4.0, 0.7


@dataclass
class HeldoutGap:
    """Training's share of right attempts rises while the dev questions' falls.

    The mean of the last three dev scores is compared with the best mean of three before them, and
    the pass rate with its first six steps. It speaks where the dev scores have fallen by more than
    a few questions' noise, and the pass rate has not fallen by as much. The bound is `deviations`
    standard errors of the difference of two such means, and at least `fall`. Even if each answer
    was drawn anew at every evaluation, a policy that stays as it is raises a false alarm in at most
    1 % of runs of 13 evaluations, by 24 questions or more (300 simulated runs each, pass rates of
    0.5 to 0.85); by 24 questions, in up to 16 % of runs of 50. The answers to the same questions
    vary less than that.
    """

    questions: int
    """Dev questions behind a score."""
    fall: float = 0.1
    deviations: float = 4.0
    name: str = "heldout_gap"
    figure: str = "dev_em"
    key: str = "reward"
    shows: Evidence | None = None
    _passed: list[float] = field(init=False, default_factory=list)
    _scores: list[float] = field(init=False, default_factory=list)
    _steps: list[int] = field(init=False, default_factory=list)
    _best: float = field(init=False, default=0.0)
    _has_fallen: bool = field(init=False, default=False)
    worst: float = field(init=False, default=0.0)

    @property
    def is_active(self) -> bool:
        """Whether the newest dev scores have still fallen."""
        return self._has_fallen

    def observe(self, row: Row) -> Finding | None:
        """Take the figures of the next step."""
        self._passed.append(row["pass_rate"])
        dev = row.get("dev_em")
        if dev is None:
            return None
        self._scores.append(dev)
        self._steps.append(int(row["step"]))
        if len(self._scores) < 2 * _SCORES:
            return None
        now, before = self._scores[-_SCORES:], self._scores[-2 * _SCORES : -_SCORES]
        self._best = max(self._best, fmean(before))
        fallen = self._best - fmean(now)
        gain = median(self._passed[-3:]) - median(self._passed[:6])
        had_fallen = self._has_fallen
        self._has_fallen = fallen > self._bound() and gain > -self.fall
        if not self._has_fallen:
            return None
        self.worst = max(self.worst, fallen)
        if had_fallen:
            return None
        newest = zip(self._steps[-_SCORES:], now, strict=True)
        since = next(step for step, score in newest if self._best - score > self._bound())
        return Finding(
            since,
            f"dev_em is {fmean(now):.2f} in the mean of three, {self._best:.2f} at its best, while "
            f"training passes {gain:+.2f} against its first steps: the reward pays for something "
            "else",
        )

    def _bound(self) -> float:
        """Return the least fall that is more than noise."""
        error = _error_of_difference(self._best, _SCORES * self.questions)
        return max(self.fall, self.deviations * error)


_SCORES = 3


def _error_of_difference(score: float, answers: int) -> float:
    """Return the standard error of the difference of two scores of so many answers each."""
    inside = min(0.9, max(0.1, score))
    return math.sqrt(2 * inside * (1 - inside) / answers)


@dataclass
class HeldoutFall:
    """The dev score is far below that of the weights which training began with.

    The bound is `deviations` standard errors of the difference of two scores, and at least `fall`.
    """

    questions: int
    """Dev questions behind a score."""
    fall: float = 0.2
    deviations: float = 4.0
    name: str = "heldout_fall"
    figure: str = "dev_em"
    key: str = _RATE
    shows: Evidence | None = None
    start: float | None = None
    """Score before training. Where it is not given, the first score of a step stands for it."""
    _has_fallen: bool = field(init=False, default=False)
    worst: float = field(init=False, default=0.0)

    @property
    def is_active(self) -> bool:
        """Whether the newest dev score is still as far below."""
        return self._has_fallen

    def observe(self, row: Row) -> Finding | None:
        """Take the figures of the next step."""
        dev = row.get("dev_em")
        if dev is None or not math.isfinite(dev):
            return None
        self.start = dev if self.start is None else self.start
        error = _error_of_difference(self.start, self.questions)
        bound = max(self.fall, self.deviations * error)
        self.worst = max(self.worst, (self.start - dev) / bound)
        had_fallen, self._has_fallen = self._has_fallen, self.start - dev > bound
        if had_fallen or not self._has_fallen:
            return None
        return Finding(
            int(row["step"]),
            f"dev_em is {dev:.2f}, {self.start:.2f} before training: the policy loses what it knew",
        )


@dataclass
class JudgeAgainstRule:
    """Judges agree less with the rule than in the beginning (`NAME/kappa_with_rule`)."""

    name: str = "rule_against_judge"
    figure: str = "NAME/kappa_with_rule"
    key: str = "reward.judges"
    shows: Evidence | None = None
    _drifts: dict[str, Drift] = field(init=False, default_factory=dict)

    @property
    def is_active(self) -> bool:
        """Whether one of the judges still disagrees more."""
        return any(drift.is_active for drift in self._drifts.values())

    def observe(self, row: Row) -> Finding | None:
        """Take the figures of the next step."""
        for figure in row:
            if figure.endswith(("/kappa_with_rule", "outcome_model/agreement")):
                self._drifts.setdefault(
                    figure,
                    Drift(
                        self.name, figure, -1.0, 0.05, self.key,
                        "the judges and the rule part, and what is paid may be the judges' bias",
                    ),
                )  # fmt: skip
        found = [
            it._replace(figure=figure)
            for figure, drift in self._drifts.items()
            if (it := drift.observe(row)) is not None
        ]
        return found[0] if found else None


Make = Callable[[TrainingConfig], Detector]
"""Makes the detector for one run."""


def _drift(  # noqa: PLR0913 (a row of the table)
    name: str,
    figure: str,
    direction: float,
    floor: float,
    key: str,
    meaning: str,
    *,
    shows: Evidence | None = None,
    is_log: bool = False,
    least: float = 0.0,
    missing: float | None = None,
    unless: Callable[[Row, Row], bool] | None = None,
    parts: str = "",
) -> Make:
    return lambda _: Drift(
        name, figure, direction, floor, key, meaning,
        shows=shows, is_log=is_log, least=least, missing=missing, unless=unless, parts=parts,
    )  # fmt: skip


_ENTROPY = "training.algorithm.entropy_coefficient"


def _clipped(config: TrainingConfig) -> Detector:
    """Return a bound where a token's ratio is clipped, and a drift where a whole sequence's is.

    GSPO clips 15 % of the tokens in a healthy run, a hundred times as many as a token's ratio does
    (arXiv:2507.18071, sec. 5.2): there only a rise says something.
    """
    meaning = "one step moves the policy further than the loss trusts"
    if config.algorithm.loss.clips_sequences:
        return Drift("clipped", "clipped_share", 1.0, 0.1, _RATE, meaning)
    return Beyond("clipped", "clipped_share", 0.15, _RATE, meaning, steps=6)


DETECTORS: Mapping[str, Make] = {
    "mask_leak": lambda _: Beyond(
        "mask_leak", "observation_share", 0.0, "training.train_on_observations",
        "tool results are in the loss", severity="critical",
        shows=by_attempt(lambda it: float(bool(it.tool_results))),
    ),
    "canary": lambda _: Beyond(
        "canary", "dev_canaries_right", 0.0, "environment",
        "a question whose answer nobody can find counts as right: the verifier takes wrong answers",
        severity="critical",
    ),
    "entropy": _drift(
        "entropy", "entropy", -1, 0.3, _ENTROPY,
        "the policy becomes certain without becoming right", is_log=True, least=1e-3, unless=learns,
    ),
    "entropy_rise": _drift(
        "entropy_rise", "entropy", 1, 0.25, _RATE,
        "the policy loses what it knew", is_log=True, least=1e-3,
    ),
    "kl": _drift(
        "kl", "kl", 1, 0.05, "training.algorithm.kl", "the policy leaves its reference",
    ),
    "clipped": _clipped,
    "grad_norm": _drift(
        "grad_norm", "grad_norm", 1, 0.6, "training.optimizer.max_grad_norm",
        "updates follow few tokens", is_log=True,
    ),
    "head_grad_norm": _drift(
        "head_grad_norm", "head_grad_norm", 1, 0.6, _RATE,
        "the output head takes the gradient, which goes before a collapse", is_log=True,
    ),
    "reward_spread": _drift(
        "reward_spread", "reward_spread", -1, 0.06, "training.temperature",
        "attempts at a task earn the same, right or wrong", shows=_equally_rewarded, unless=learns,
    ),
    "own_task": _drift(
        "own_task", "own_task_share", -1, 0.12, _ENTROPY,
        "attempts say the same whatever the task: their reasoning is a template",
    ),
    "mismatch": _drift(
        "mismatch", "mismatch_kl", 1, 1.1, "training.max_mismatch_kl",
        "the engine samples from other weights, or with another distribution, than the trainer has",
        is_log=True, least=1e-5,
    ),
    "grounding": _drift(
        "grounding", "grounded_share", -1, 0.12, "reward",
        "answers do not come from the tools' results", shows=by_attempt(_is_ungrounded),
    ),
    "grounded_right": _drift(
        "grounded_right", "grounded_right_share", -1, 0.04, "reward",
        "answers are paid that no result of a tool contains", shows=by_attempt(_is_right_by_itself),
    ),
    "repetition": _drift(
        "repetition", "repeated_tokens_share", 1, 0.03, "reward.terms",
        "attempts repeat their own tokens", shows=by_attempt(repeated_tokens),
    ),
    "repeated_calls": _drift(
        "repeated_calls", "repeated_calls_share", 1, 0.04, "reward.terms",
        "attempts make the same call again", shows=by_attempt(lambda it: float(repeats_a_call(it))),
    ),
    "unknown_calls": _drift(
        "unknown_calls", _UNKNOWN, 1, 0.04, "environment",
        "attempts call tools that are not offered", shows=by_attempt(_calls_unknown), missing=0.0,
    ),
    "failed_calls": _drift(
        "failed_calls", "failed_calls_share", 1, 0.08, "environment",
        "a tool fails, or attempts call it wrongly", shows=by_attempt(_calls_fail),
    ),
    "length_rise": _drift(
        "length_rise", "action_tokens", 1, 0.12, "reward.terms", "attempts become longer",
        shows=by_attempt(_length), is_log=True,
    ),
    "length_fall": _drift(
        "length_fall", "action_tokens", -1, 0.12, "reward.terms", "attempts become shorter",
        is_log=True, unless=learns,
    ),
    "truncation": _drift(
        "truncation", "truncated_share", 1, 0.06, "episode.max_turns",
        "attempts run out of turns or tokens", shows=by_attempt(lambda it: float(is_truncated(it))),
    ),
    "silent_groups": _drift(
        "silent_groups", "silent_groups_share", 1, 0.08, "policy.dialect",
        "no call of a whole group was read", shows=by_attempt(_is_silent),
    ),
    "equal_outcomes": lambda _: Beyond(
        "equal_outcomes", "equal_outcomes_share", 0.96, "curriculum.pass_rate_band",
        "attempts at a task are all right or all wrong, and teach nothing", steps=3,
        shows=_all_alike,
    ),
    "disputed": _drift(
        "disputed", "disputed_share", 1, 0.03, "environment",
        "equal answers get different verdicts: the verifier is noisy", shows=_disputed,
    ),
    "scattered": _drift(
        "scattered", "scattered_share", 1, 0.04, "environment",
        "different answers to one question are all right: the verifier takes wrong ones",
        shows=by_attempt(_is_right_by_itself),
    ),
    "paid_though_wrong": _drift(
        "paid_though_wrong", "wrong_reward", 1, 0.04, "reward",
        "wrong attempts earn more: a term or a judge pays for something else",
        shows=by_attempt(_is_paid_though_wrong), parts="wrong_reward/",
    ),
    "staleness": lambda _: Beyond(
        "staleness", "staleness_mean", 4.0, "training.replay.max_staleness",
        "trajectories are much older than the weights", steps=2,
    ),
    "tasks_left": _drift(
        "tasks_left", "kept_tasks", -1, 0.4, "curriculum.pass_rate_band",
        "few tasks are left to draw from", is_log=True,
    ),
    "few_tasks": lambda config: Beyond(
        "few_tasks", "kept_tasks", config.tasks_per_step + 1, "curriculum.pass_rate_band",
        "every step draws the same tasks, which the policy may learn by heart", direction=-1.0,
        steps=3,
    ),
    "verdict_shift": lambda _: VerdictShift(),
    "heldout_fall": lambda config: HeldoutFall(config.dev_questions),
    "heldout_gap": lambda config: HeldoutGap(config.dev_questions),
    "rule_against_judge": lambda _: JudgeAgainstRule(),
}  # fmt: skip
"""Detectors by name."""


def new_detectors(config: TrainingConfig) -> list[Detector]:
    """Return the detectors of a run, without those that its profile ignores."""
    ignored = config.health.ignore
    return [make(config) for name, make in DETECTORS.items() if name not in ignored]
