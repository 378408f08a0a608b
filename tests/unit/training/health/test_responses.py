import math

import pytest

from espalier.config import TrainingConfig
from espalier.training.health import HealthMonitor, Responder, new_detectors
from espalier.training.health.responses import RESPONSES, TRIAL_STEPS
from tests.factories.records import make_trajectory
from tests.unit.training.health.test_rules import FAULTS, ONSET, history


class Recorded:
    """Controls that only keep what they were told."""

    def __init__(self, *, can_quarantine=True, can_gate=True):
        self.told = []
        self.bounds = []
        self._can_gate = can_gate
        self._can_quarantine = can_quarantine

    def scale_rate(self, scale):
        self.told.append(("rate", scale))

    def quarantine(self, task_ids):
        self.told.append(("quarantine", tuple(task_ids)))
        return self._can_quarantine

    def verifiers(self):
        return VERIFIERS

    def leave_out(self, names):
        self.told.append(("leave_out", tuple(names)))

    def skip_beyond(self, mismatch_kl):
        self.bounds.append(mismatch_kl)

    def add_entropy(self, coefficient):
        self.told.append(("entropy", coefficient))

    def scale_kl(self, scale):
        self.told.append(("kl", scale))

    def gate(self):
        self.told.append(("gate",))
        return self._can_gate

    def ungate(self):
        self.told.append(("ungate",))

    def widen(self):
        self.told.append(("widen",))
        return True

    def narrow(self):
        self.told.append(("narrow",))

    def return_to_best(self):
        self.told.append(("best",))


VERIFIERS = dict.fromkeys(("a", "b", "c", "unseen"), "sql/exact") | {"d": "shop/goal"}
PAID = {"wrong_reward": 0.6, "wrong_reward/format": 0.1, "wrong_reward/judges": 0.5}
"""What a judge pays wrong attempts from ONSET on."""

FIRST = ONSET + 5
"""Step at which a share of clipped tokens is told."""


def acting(rows, sampled=(), state=None, done=0, controls=None, config=None):
    """Notices of the rows after `done`, the controls, and the responder."""
    monitor, controls = (
        HealthMonitor(new_detectors(config or TrainingConfig()), lambda: 0.0),
        controls or Recorded(),
    )
    responder = Responder(monitor, controls)
    monitor.replay(rows[:done])
    if state is not None:
        responder.restore(state)
    found = []
    for row in rows[done:]:
        notices = monitor.observe(row, sampled)
        found += notices + responder.respond(int(row["step"]), notices, sampled)
    return found, controls, responder


def actions(found):
    return [(one.action, one.step) for one in found if one.action]


def group(task_id, *verdicts):
    """Attempts that answer the same."""
    return [make_trajectory(task_id, outcome=verdict, answer="x") for verdict in verdicts]


def test_a_response_that_helps_stays():
    rows = history(changed=FAULTS["clipped"], steps=FIRST) + history(steps=40)[FIRST:]
    found, controls, _ = acting(rows)
    assert actions(found) == [("lowered_rate", FIRST)]
    assert controls.told == [("rate", 0.5)]


def test_a_response_without_help_is_undone_and_followed():
    found, controls, responder = acting(history(changed=FAULTS["clipped"]))
    assert actions(found) == [
        ("lowered_rate", FIRST),
        ("undone", FIRST + TRIAL_STEPS),
        ("returned_to_best", FIRST + TRIAL_STEPS),
        ("stopped", FIRST + 2 * TRIAL_STEPS),
    ]
    assert controls.told == [("rate", 0.5), ("rate", 1.0), ("best",)]
    assert responder.stopped.startswith("clipped: clipped_share is 0.3")


def test_a_leaking_mask_ends_the_run_at_once():
    found, _, responder = acting(history(changed=FAULTS["mask_leak"]))
    assert actions(found) == [("stopped", ONSET)]
    assert responder.stopped


def test_a_task_with_contradictory_verdicts_is_quarantined():
    sampled = group("a", 1, 0) + group("b", 1, 1) + group("c", 0, 0)
    found, controls, _ = acting(history(changed=FAULTS["disputed"], steps=20), sampled)
    assert [one.action for one in found if one.action] == ["quarantined_task"]
    assert controls.told == [("quarantine", ("a",))]


def test_a_verifier_that_contradicts_itself_loses_its_tasks():
    sampled = group("a", 1, 0) + group("b", 1, 0) + group("c", 0, 1) + group("d", 1, 1)
    found, controls, _ = acting(history(changed=FAULTS["disputed"]), sampled)
    assert [one.action for one in found if one.action] == [
        "quarantined_verifier",
        "undone",
        "stopped",
    ]
    taken = next(one for one in found if one.action)
    assert taken.message.startswith("the verifier sql/exact is not trusted: 4 tasks ")
    assert controls.told == [("quarantine", ("a", "b", "c", "unseen")), ("quarantine", ())]


def test_a_verifier_that_most_of_its_tasks_acquit_stays():
    sampled = group("a", 1, 0) + group("b", 1, 1) + group("c", 0, 0) + group("d", 1, 0)
    sampled += group("other", 1, 0)
    found, controls, _ = acting(history(changed=FAULTS["disputed"], steps=20), sampled)
    assert [one.action for one in found if one.action] == ["quarantined_verifier"]
    assert controls.told == [("quarantine", ("d",))]


def test_a_run_whose_only_verifier_contradicts_itself_ends():
    sampled = group("a", 1, 0) + group("b", 1, 0)
    rows = history(changed=FAULTS["disputed"], steps=20)
    found, _, responder = acting(rows, sampled, controls=Recorded(can_quarantine=False))
    assert [one.action for one in found if one.action] == ["stopped"]
    assert responder.stopped.startswith("disputed: ")


def paid(judges, outcome):
    return make_trajectory("a", reward={"outcome": outcome, "format": 0.1, "judges": judges})


def test_a_term_that_pays_wrong_attempts_is_left_out():
    rows = history(changed=PAID, steps=20) + history(steps=40)[20:]
    found, controls, _ = acting(rows, [paid(0.9, 0.0), paid(0.9, 1.0)])
    assert [one.action for one in found if one.action] == ["left_out_term"]
    assert controls.told == [("leave_out", ("judges",))]


def test_a_term_that_was_not_at_fault_is_paid_again():
    found, controls, _ = acting(history(changed=PAID), [paid(0.9, 0.0), paid(0.9, 1.0)])
    assert [one.action for one in found if one.action] == [
        "left_out_term",
        "undone",
        "returned_to_best",
        "stopped",
    ]
    assert controls.told == [("leave_out", ("judges",)), ("leave_out", ()), ("best",)]


def test_a_run_that_only_the_term_at_fault_rewards_ends():
    rows = history(changed=PAID, steps=20)
    found, controls, responder = acting(rows, [paid(0.9, 0.0), paid(0.2, 0.0)])
    assert [one.action for one in found if one.action] == ["stopped"]
    assert responder.stopped.endswith("no other term than judges pays one attempt more")
    assert controls.told == []


def test_a_judge_against_the_rule_is_left_out_for_good():
    rows = history(changed=FAULTS["rule_against_judge"])
    found, controls, _ = acting(rows, [paid(0.9, 0.0), paid(0.9, 1.0)])
    assert [one.action for one in found if one.action] == ["left_out_term"]
    assert controls.told == [("leave_out", ("judges",))]


def test_undoing_one_quarantine_keeps_anothers_tasks():
    faults = FAULTS["disputed"] | FAULTS["scattered"]
    rows = history(changed=faults, steps=20) + history(changed=FAULTS["scattered"])[20:]
    sampled = (
        group("both", 1, 0) + [make_trajectory("both", outcome=1, answer="y")] + group("c", 1, 1)
        + [make_trajectory("other", outcome=1, answer=answer) for answer in "xy"] + group("d", 0, 0)
    )  # fmt: skip
    found, controls, _ = acting(rows, sampled)
    told = [(one.detector, one.action) for one in found if one.action]
    assert told[:3] == [
        ("disputed", "quarantined_task"),
        ("scattered", "quarantined_task"),
        ("scattered", "undone"),
    ]
    assert [tuple(sorted(names)) for _, names in controls.told] == [
        ("both",),
        ("both", "other"),
        ("both",),
    ]


def test_a_pool_too_small_for_quarantine_gets_another_response():
    sampled = [make_trajectory("a", outcome=1, answer=answer) for answer in "xy"] + group("b", 0, 0)
    rows = history(changed=FAULTS["scattered"], steps=20)
    found, _, _ = acting(rows, sampled, controls=Recorded(can_quarantine=False))
    assert [one.action for one in found if one.action] == ["stopped"]


def test_steps_are_bounded_by_the_mismatch_of_the_beginning():
    _, controls, _ = acting(history(steps=8))
    # 1e-8 counts as 1e-5, from which 4 times 1.1 is as far as a step counts
    assert controls.bounds == pytest.approx([1e-5 * math.exp(4.4)] * 3)


def test_a_run_that_ignores_mismatch_skips_nothing():
    ignoring = TrainingConfig.model_validate({"health": {"ignore": ["mismatch"]}})
    rows = [*history(steps=7), history(steps=8)[7] | {"skipped_step": 1.0}]
    found, controls, _ = acting(rows, config=ignoring)
    assert (actions(found), controls.bounds) == ([], [])


def test_a_skipped_step_is_told_when_it_happens():
    rows = history(steps=20)
    rows[9] |= {"skipped_step": 1.0, "mismatch_kl": 0.045}
    found, _, _ = acting(rows)
    [notice] = found
    assert (notice.action, notice.step, notice.severity) == ("skipped_step", 10, "info")
    assert notice.message.startswith("mismatch_kl is 0.045, far from the first steps: ")


def test_a_mismatch_that_lasts_ends_the_run():
    rows = history(changed=FAULTS["mismatch"], steps=20)
    found, _, _ = acting([row | {"skipped_step": float(row["step"] >= ONSET)} for row in rows])
    assert actions(found)[:5] == [
        *(("skipped_step", step) for step in range(ONSET, ONSET + 4)),
        ("stopped", ONSET + 3),
    ]


def test_entropy_that_helped_is_added_for_eight_steps_and_again():
    fault, steps = FAULTS["entropy"], ONSET + 8
    once = history(changed=fault, steps=steps) + history(steps=60)[steps:]
    rows = [row | fault if row["step"] >= 40 else row for row in once]
    found, controls, _ = acting(rows)
    assert [action for action, _ in actions(found)][:3] == [
        "added_entropy",
        "undone",
        "added_entropy",
    ]
    assert "has helped" in next(one.message for one in found if one.action == "undone")
    assert controls.told[:3] == [("entropy", 0.01), ("entropy", 0.0), ("entropy", 0.01)]


def test_entropy_without_help_is_undone_and_the_rate_lowered():
    found, controls, _ = acting(history(changed=FAULTS["own_task"], steps=30))
    assert [action for action, _ in actions(found)] == ["added_entropy", "undone", "lowered_rate"]
    assert controls.told == [("entropy", 0.01), ("entropy", 0.0), ("rate", 0.5)]


def test_two_collapses_at_once_add_entropy_once():
    rows = history(changed=FAULTS["entropy"] | FAULTS["own_task"], steps=ONSET + 6)
    _, controls, _ = acting(rows)
    assert controls.told.count(("entropy", 0.01)) == 1


def test_a_penalty_without_help_is_lowered_again():
    fault = FAULTS["kl"]
    found, controls, _ = acting(history(changed=fault, steps=ONSET + 12))
    assert [action for action, _ in actions(found)] == ["raised_kl", "undone", "lowered_rate"]
    assert controls.told == [("kl", 4.0), ("kl", 1.0), ("rate", 0.5)]


def test_a_gate_without_help_is_undone_and_the_rate_lowered():
    _, controls, _ = acting(history(changed=FAULTS["head_grad_norm"]))
    assert controls.told == [("gate",), ("ungate",), ("rate", 0.5), ("rate", 1.0)]


def test_a_policy_whose_head_cannot_be_gated_learns_slower():
    rows = history(changed=FAULTS["head_grad_norm"], steps=20)
    _, controls, _ = acting(rows, controls=Recorded(can_gate=False))
    assert controls.told == [("gate",), ("rate", 0.5)]


def test_a_curriculum_of_few_tasks_is_widened_and_narrowed():
    _, controls, _ = acting(history(changed=FAULTS["tasks_left"]))
    assert controls.told == [("widen",), ("narrow",)]


def test_a_resume_sets_gate_curriculum_and_reward_again():
    faults = FAULTS["tasks_left"] | FAULTS["head_grad_norm"] | FAULTS["own_task"] | PAID
    faults |= FAULTS["kl"]
    rows = history(changed=faults)
    done, sampled = ONSET + 5, [paid(0.9, 0.0), paid(0.9, 1.0)]
    _, _, responder = acting(rows[:done], sampled)
    _, controls, _ = acting(rows[: done + 1], sampled, state=responder.state(), done=done)
    taken = {("gate",), ("widen",), ("leave_out", ("judges",)), ("entropy", 0.01), ("kl", 4.0)}
    assert taken <= set(controls.told)


@pytest.mark.parametrize(
    "done", [ONSET, FIRST, FIRST + 3, FIRST + TRIAL_STEPS, FIRST + TRIAL_STEPS + 2]
)
def test_a_resumed_run_acts_as_an_unbroken_one(done):
    names = ("clipped", "repetition", "tasks_left", "head_grad_norm", "disputed", "entropy")
    changed = {figure: value for name in names for figure, value in FAULTS[name].items()}
    rows = history(changed=changed | PAID)
    sampled = [*group("b", 1, 0), paid(0.9, 0.0), paid(0.9, 1.0), *group("d", 1, 1)]
    unbroken, _, _ = acting(rows, sampled)
    before, _, responder = acting(rows[:done], sampled)
    after, _, _ = acting(rows, sampled, state=responder.state(), done=done)
    assert before + after == unbroken


def test_healthy_noise_changes_nothing():
    found, controls, _ = acting(history())
    assert (actions(found), controls.told) == ([], [])


def test_responses_are_to_detectors_that_there_are():
    assert set(RESPONSES) <= set(FAULTS)
