"""What a run does about notices where the profile says `training.health.response = "act"`.

Each detector has a list of responses. The first is taken when it speaks; TRIAL_STEPS later, if it
still does, the response is undone (where it can be) and the next one is taken. Each of these is a
notice of its own, with `action` set. The state is in the checkpoint: a resumed run acts as an
unbroken one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from espalier.records.notices import Notice
from espalier.records.trajectory import Trajectory
from espalier.training.attempt_figures import (
    groups_by_task,
    is_disputed,
    is_grounded,
    is_scattered,
)
from espalier.training.health.monitor import HealthMonitor

LOWERED_RATE, QUARANTINED = "lowered_rate", "quarantined_task"
QUARANTINED_VERIFIER, LEFT_OUT = "quarantined_verifier", "left_out_term"
SKIPPED, ADDED_ENTROPY, RAISED_KL = "skipped_step", "added_entropy", "raised_kl"
GATED, WIDENED = "gated", "widened_curriculum"
RETURNED, STOPPED, UNDONE = "returned_to_best", "stopped", "undone"

TRIAL_STEPS = 8
"""Steps after which a response has to have helped."""
_RATE_FACTOR = 0.5
ENTROPY_BONUS = 0.01
"""What is added to the coefficient of the policy's entropy in the loss; no run has fixed it."""
KL_FACTOR = 4.0
"""By which the coefficient of the KL penalty is raised; no run has fixed it."""
_MOST_QUARANTINED = 0.5
"""Share of tasks in a step above which not a task is at fault but what judges them: of all tasks,
and of those of one verifier."""

_MILD = (LOWERED_RATE, RETURNED, STOPPED)
RESPONSES: Mapping[str, Sequence[str]] = {
    "mask_leak": (STOPPED,),
    "canary": (STOPPED,),
    "entropy": (ADDED_ENTROPY,),
    "reward_spread": (ADDED_ENTROPY,),
    "clipped": _MILD,
    "grad_norm": (LOWERED_RATE,),
    "head_grad_norm": (GATED, LOWERED_RATE),
    "entropy_rise": _MILD,
    "kl": (RAISED_KL, *_MILD),
    "own_task": (ADDED_ENTROPY, *_MILD),
    "repetition": _MILD,
    "mismatch": (STOPPED,),
    "disputed": (QUARANTINED, QUARANTINED_VERIFIER, STOPPED),
    "scattered": (QUARANTINED, QUARANTINED_VERIFIER, STOPPED),
    "grounded_right": (QUARANTINED, QUARANTINED_VERIFIER, STOPPED),
    "paid_though_wrong": (LEFT_OUT, RETURNED, STOPPED),
    "rule_against_judge": (LEFT_OUT, LEFT_OUT),
    "silent_groups": (RETURNED, STOPPED),
    "heldout_gap": (RETURNED, STOPPED),
    "heldout_fall": (RETURNED, LOWERED_RATE, STOPPED),
    "tasks_left": (WIDENED,),
    "few_tasks": (WIDENED,),
    "equal_outcomes": (WIDENED,),
}
"""Detector -> what is tried, in order. The others only warn: what they tell has no cure in the
trainer (a tool that fails), or may be what is wanted (longer attempts)."""


def _ungrounded_right(group: Sequence[Trajectory]) -> bool:
    return any(attempt.is_right and not is_grounded(attempt) for attempt in group)


_AT_FAULT: Mapping[str, Callable[[Sequence[Trajectory]], bool]] = {
    "disputed": is_disputed,
    "scattered": is_scattered,
    "grounded_right": _ungrounded_right,
}

_SKIPPING = "mismatch"
"""Detector of whose figure one step is left out where it is far from the run's beginning: without
waiting for a drift, which it then is not yet."""
_PASSING = {ADDED_ENTROPY}
"""Responses that are undone after TRIAL_STEPS also where they helped, to be taken again if need
be: they hold the policy off what it is rewarded for."""
_UNJUDGED = {("rule_against_judge", LEFT_OUT)}
"""A judge goes on to disagree with the rule when it is not paid any more: that stays for good."""


class Controls(Protocol):
    """What a response may change in a run."""

    def scale_rate(self, scale: float) -> None:
        """Multiply the learning rate of the policy's schedule by `scale` from now on."""
        ...

    def quarantine(self, task_ids: Sequence[str]) -> bool:
        """Draw these tasks, and no others, no more; returns False where too few would be left."""
        ...

    def verifiers(self) -> Mapping[str, str]:
        """Return the name of the verifier of each task that can be drawn, by the task's id."""
        ...

    def leave_out(self, names: Sequence[str]) -> None:
        """Reward attempts without these terms, and no others."""
        ...

    def skip_beyond(self, mismatch_kl: float) -> None:
        """Leave the policy as it is in a step with a larger mismatch of engine and trainer."""
        ...

    def add_entropy(self, coefficient: float) -> None:
        """Reward the policy's entropy by this much more than the profile does."""
        ...

    def scale_kl(self, scale: float) -> None:
        """Multiply the coefficient of the KL penalty, which the algorithm has, by `scale`."""
        ...

    def gate(self) -> bool:
        """End a step's updates where the gradient of the output head surges over the first one's.

        Returns False where that cannot be: one update a step, or a head that is not trained.
        """
        ...

    def ungate(self) -> None:
        """Make all updates of a step again."""
        ...

    def widen(self) -> bool:
        """Draw from all tasks, whatever their pass rates; returns False where that is so."""
        ...

    def narrow(self) -> None:
        """Draw by pass rates again, as the profile says."""
        ...

    def return_to_best(self) -> None:
        """Load the weights of the best dev score, and begin the optimizer's moments anew."""
        ...


@dataclass(frozen=True)
class Trial:
    """A response that has been taken and is not yet judged."""

    detector: str
    action: str
    step: int


@dataclass
class _State:
    rate_scale: float = 1.0
    is_gated: bool = False
    is_wide: bool = False
    adds_entropy: bool = False
    raises_kl: bool = False
    quarantined: dict[str, list[str]] = field(default_factory=dict)
    """Detector -> the tasks that it has taken out; a task may be of several."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Detector -> the terms that it has taken out of the reward; a term is of one."""
    trials: list[Trial] = field(default_factory=list)
    tried: dict[str, int] = field(default_factory=dict)
    """Detector -> how many of its responses were taken."""
    stopped: str = ""

    def quarantined_ids(self) -> list[str]:
        """Return the tasks that any detector has taken out, each once."""
        return list(dict.fromkeys(one for ids in self.quarantined.values() for one in ids))

    def left_out_terms(self) -> list[str]:
        """Return the terms that rewards are without."""
        return [name for names in self.left_out.values() for name in names]


class Responder:
    """Takes responses of one run, and judges them."""

    def __init__(self, monitor: HealthMonitor, controls: Controls) -> None:
        self._monitor = monitor
        self._controls = controls
        self._state = _State()

    @property
    def stopped(self) -> str:
        """Why the run is to end; empty while it goes on."""
        return self._state.stopped

    def respond(
        self, step: int, notices: Sequence[Notice], sampled: Sequence[Trajectory]
    ) -> list[Notice]:
        """Judge earlier responses, and answer the notices of a step; returns what was done.

        Args:
            step: the step, counted from 1.
            notices: what the detectors began to notice at it.
            sampled: its scored attempts.
        """
        done = [*self._skipped(step), *self._judge(step, sampled)]
        for notice in notices:
            done += self._take(notice, sampled)
        self._bound_mismatch()
        return done

    def _bound_mismatch(self) -> None:
        drift = self._monitor.drift(_SKIPPING)
        if drift is not None and drift.far is not None:
            self._controls.skip_beyond(drift.far)

    def _skipped(self, step: int) -> list[Notice]:
        """Tell of a step whose gradient was not applied."""
        row, drift = self._monitor.row, self._monitor.drift(_SKIPPING)
        if drift is None or not row.get("skipped_step"):
            return []
        said = (
            f"{drift.figure} is {row[drift.figure]:.3g}, far from the first steps: the gradient of "
            "this step is not applied"
        )
        notice = Notice(
            step=step,
            time=self._monitor.now(),
            detector=drift.name,
            severity="info",
            since_step=step,
            message=said,
            key=drift.key,
            figure=drift.figure,
            action=SKIPPED,
        )
        return [notice]

    def _judge(self, step: int, sampled: Sequence[Trajectory]) -> list[Notice]:
        """Undo responses whose TRIAL_STEPS are over without help, and take the next ones.

        Those that pass are undone in any case, and may be taken again where they helped.
        """
        done: list[Notice] = []
        due = [one for one in self._state.trials if step - one.step >= TRIAL_STEPS]
        for trial in due:
            self._state.trials.remove(trial)
            helped = not self._monitor.is_active(trial.detector)
            if helped and trial.action not in _PASSING:
                continue
            notice = self._monitor.newest(trial.detector)
            if self._undo(trial):
                why = "has helped" if helped else "did not help"
                said = f"{trial.action} of step {trial.step} {why} and is undone"
                done.append(self._done(notice, step, UNDONE, said))
            if helped:
                self._state.tried[trial.detector] -= 1
            else:
                done += self._take(replace(notice, step=step), sampled)
        return done

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as plain data."""
        return asdict(self._state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, and set the controls accordingly."""
        trials = [Trial(**trial) for trial in state["trials"]]
        self._state = _State(**{**state, "trials": trials})
        self._controls.scale_rate(self._state.rate_scale)
        self._controls.quarantine(self._state.quarantined_ids())
        self._controls.leave_out(self._state.left_out_terms())
        if self._state.is_gated:
            self._controls.gate()
        if self._state.is_wide:
            self._controls.widen()
        if self._state.adds_entropy:
            self._controls.add_entropy(ENTROPY_BONUS)
        if self._state.raises_kl:
            self._controls.scale_kl(KL_FACTOR)
        self._bound_mismatch()

    def _take(self, notice: Notice, sampled: Sequence[Trajectory]) -> list[Notice]:
        """Take the next response to a detector, if it has one left and none is on trial."""
        state, name = self._state, notice.detector
        if state.stopped or any(trial.detector == name for trial in state.trials):
            return []
        left = RESPONSES.get(name, ())[state.tried.get(name, 0) :]
        for action in left:
            state.tried[name] = state.tried.get(name, 0) + 1
            said = self._act(action, notice, sampled)
            if not said:
                continue
            if state.stopped:
                action = STOPPED
            elif (name, action) not in _UNJUDGED:
                state.trials.append(Trial(name, action, notice.step))
            return [self._done(notice, notice.step, action, said)]
        return []

    def _tasks_at_fault(self, name: str, sampled: Sequence[Trajectory]) -> tuple[str, ...]:
        """Return the tasks that show it; none where so many do that the fault is elsewhere."""
        groups = groups_by_task(sampled)
        found = [group[0].task_id for group in groups if _AT_FAULT[name](group)]
        return tuple(found) if len(found) <= _MOST_QUARANTINED * len(groups) else ()

    def _quarantine(self, name: str, task_ids: Sequence[str]) -> str:
        """Take out tasks for a detector; returns "" where that cannot be."""
        state = self._state
        state.quarantined[name] = list(task_ids)
        if not task_ids or not self._controls.quarantine(state.quarantined_ids()):
            del state.quarantined[name]
            return ""
        return f"{len(task_ids)} tasks are drawn no more: {', '.join(task_ids[:5])}"

    def _quarantine_verifiers(self, name: str, sampled: Sequence[Trajectory]) -> str:
        """Take out all tasks of each verifier where most of its tasks in the step are at fault."""
        verifiers, groups = self._controls.verifiers(), groups_by_task(sampled)
        judged = Counter(verifiers.get(group[0].task_id) for group in groups)
        at_fault = Counter(
            verifiers.get(group[0].task_id) for group in groups if _AT_FAULT[name](group)
        )
        named = [it for it in at_fault if it and at_fault[it] > _MOST_QUARANTINED * judged[it]]
        of_them = [task_id for task_id, verifier in verifiers.items() if verifier in named]
        said = self._quarantine(name, of_them)
        return said and f"the verifier {', '.join(named)} is not trusted: {said}"

    def _leave_out(self, notice: Notice, sampled: Sequence[Trajectory]) -> str:
        """Take a term out of the reward, or end the run where the others pay all the same."""
        state, term = self._state, self._term_at_fault(notice)
        if not any(term in one.reward for one in sampled) or term in state.left_out_terms():
            return ""
        gone = {term, *state.left_out_terms()}
        others = {
            sum(paid for name, paid in one.reward.items() if name not in gone) for one in sampled
        }
        if len(others) == 1:
            return self._stop(notice, f"; no other term than {term} pays one attempt more")
        state.left_out.setdefault(notice.detector, []).append(term)
        self._controls.leave_out(state.left_out_terms())
        return f"rewards are without the term {term}"

    def _term_at_fault(self, notice: Notice) -> str:
        """Return the judge that a notice tells of, or the term that pays wrong attempts more.

        Compared with the run's first steps; empty where there is none.
        """
        if notice.detector == "rule_against_judge":
            return notice.figure.partition("/")[0]
        risen = self._monitor.risen("wrong_reward/")
        term = max(risen, key=lambda name: risen[name], default="")
        return term if term and risen[term] > 0 else ""

    def _stop(self, notice: Notice, why: str = "") -> str:
        self._state.stopped = f"{notice.detector}: {notice.message}{why}"
        return f"the run ends, with the weights of the best dev score{why}"

    def _gate(self) -> str:
        if self._state.is_gated or not self._controls.gate():
            return ""
        self._state.is_gated = True
        return "a step's updates end where the gradient of the output head surges"

    def _add_entropy(self) -> str:
        if self._state.adds_entropy:
            return ""
        self._state.adds_entropy = True
        self._controls.add_entropy(ENTROPY_BONUS)
        return f"the loss rewards the policy's entropy by {ENTROPY_BONUS:g} more"

    def _raise_kl(self) -> str:
        self._state.raises_kl = True
        self._controls.scale_kl(KL_FACTOR)
        return f"the coefficient of the KL penalty is {KL_FACTOR:g} times as high"

    def _widen(self) -> str:
        if self._state.is_wide:
            return ""
        if not self._controls.widen():
            self._controls.narrow()
            return ""
        self._state.is_wide = True
        return "tasks of all pass rates are drawn"

    def _act(self, action: str, notice: Notice, sampled: Sequence[Trajectory]) -> str:
        """Do it, and return what was done; "" where it cannot be done."""
        state, name = self._state, notice.detector
        if action == LOWERED_RATE:
            state.rate_scale *= _RATE_FACTOR
            self._controls.scale_rate(state.rate_scale)
            return f"the learning rate is {state.rate_scale:g} of its schedule"
        if action == QUARANTINED:
            return self._quarantine(name, self._tasks_at_fault(name, sampled))
        if action == QUARANTINED_VERIFIER:
            return self._quarantine_verifiers(name, sampled)
        if action == LEFT_OUT:
            return self._leave_out(notice, sampled)
        if action == GATED:
            return self._gate()
        if action == WIDENED:
            return self._widen()
        if action == ADDED_ENTROPY:
            return self._add_entropy()
        if action == RAISED_KL:
            return self._raise_kl()
        if action == RETURNED:
            self._controls.return_to_best()
            return "the weights are those of the best dev score again"
        return self._stop(notice)

    def _undo(self, trial: Trial) -> bool:
        """Take a response back; returns whether that can be done."""
        state = self._state
        if trial.action == LOWERED_RATE:
            state.rate_scale /= _RATE_FACTOR
            self._controls.scale_rate(state.rate_scale)
            return True
        if trial.action in (QUARANTINED, QUARANTINED_VERIFIER):
            del state.quarantined[trial.detector]
            self._controls.quarantine(state.quarantined_ids())
            return True
        if trial.action == LEFT_OUT:
            del state.left_out[trial.detector]
            self._controls.leave_out(state.left_out_terms())
            return True
        if trial.action == GATED:
            state.is_gated = False
            self._controls.ungate()
            return True
        if trial.action == ADDED_ENTROPY:
            state.adds_entropy = False
            self._controls.add_entropy(0.0)
            return True
        if trial.action == RAISED_KL:
            state.raises_kl = False
            self._controls.scale_kl(1.0)
            return True
        if trial.action == WIDENED:
            state.is_wide = False
            self._controls.narrow()
            return True
        return False  # the weights that were left are gone

    def _done(self, notice: Notice, step: int, action: str, said: str) -> Notice:
        return replace(
            notice,
            step=step,
            time=self._monitor.now(),
            severity="info",
            message=said,
            action=action,
            attempts=(),
        )
