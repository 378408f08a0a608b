import random
from typing import get_args

import pytest

from espalier.config import Profile, TrainingConfig
from espalier.config.training import DetectorName
from espalier.records.step_figures import step_figure
from espalier.training.health import DETECTORS, HealthMonitor, new_detectors
from espalier.training.health.rules import HeldoutGap

START = {
    "pass_rate": 0.5, "reward": 0.55, "entropy": 0.4, "kl": 0.01, "clipped_share": 0.004,
    "grad_norm": 0.5, "head_grad_norm": 0.2, "reward_spread": 0.4, "own_task_share": 0.85,
    "mismatch_kl": 1e-8, "grounded_share": 0.8, "grounded_right_share": 0.98,
    "repeated_tokens_share": 0.01, "repeated_calls_share": 0.02, "failed_calls_share": 0.05,
    "action_tokens": 60.0, "truncated_share": 0.03, "silent_groups_share": 0.05,
    "equal_outcomes_share": 0.3, "disputed_share": 0.01, "scattered_share": 0.01,
    "wrong_reward": 0.08, "staleness_mean": 0.5, "kept_tasks": 80.0, "observation_share": 0.0,
    "judges/kappa_with_rule": 0.8, "dev_canaries_right": 0.0,
}  # fmt: skip
NOISE = {
    "pass_rate": 0.05, "entropy": 0.03, "grad_norm": 0.1, "head_grad_norm": 0.04,
    "reward_spread": 0.03, "own_task_share": 0.06, "grounded_share": 0.05,
    "grounded_right_share": 0.015, "repeated_tokens_share": 0.005, "action_tokens": 3.0,
    "equal_outcomes_share": 0.1, "kl": 0.005, "failed_calls_share": 0.02,
}  # fmt: skip
"""Standard deviation of what a healthy step adds; other figures stay."""
FAULTS = {
    "mask_leak": {"observation_share": 0.2},
    "canary": {"dev_canaries_right": 0.125},
    "entropy": {"entropy": 0.05},
    "entropy_rise": {"entropy": 2.0},
    "kl": {"kl": 0.8},
    "clipped": {"clipped_share": 0.3},
    "grad_norm": {"grad_norm": 8.0},
    "head_grad_norm": {"head_grad_norm": 3.0},
    "reward_spread": {"reward_spread": 0.05},
    "own_task": {"own_task_share": 0.2},
    "mismatch": {"mismatch_kl": 0.02},
    "grounding": {"grounded_share": 0.1},
    "grounded_right": {"grounded_right_share": 0.6},
    "repetition": {"repeated_tokens_share": 0.5},
    "repeated_calls": {"repeated_calls_share": 0.5},
    "unknown_calls": {"unread_calls/unknown_tool": 0.4},
    "failed_calls": {"failed_calls_share": 0.9},
    "length_rise": {"action_tokens": 200.0},
    "length_fall": {"action_tokens": 15.0},
    "truncation": {"truncated_share": 0.6},
    "silent_groups": {"silent_groups_share": 0.9},
    "equal_outcomes": {"equal_outcomes_share": 1.0},
    "disputed": {"disputed_share": 0.3},
    "scattered": {"scattered_share": 0.5},
    "paid_though_wrong": {"wrong_reward": 0.6},
    "staleness": {"staleness_mean": 9.0},
    "tasks_left": {"kept_tasks": 4.0},
    "few_tasks": {"kept_tasks": 2.0},
    "verdict_shift": {"pass_rate": 0.99},
    "heldout_fall": {"dev_em": 0.1},
    "heldout_gap": {"dev_em": 0.4},
    "rule_against_judge": {"judges/kappa_with_rule": 0.1},
}
ONSET = 13


def history(seed=0, steps=40, changed=None):
    """Rows of a healthy run, with other figures from ONSET on."""
    rng = random.Random(seed)
    rows = []
    for step in range(1, steps + 1):
        row = {name: max(0.0, rng.gauss(v, NOISE.get(name, 0.0))) for name, v in START.items()}
        row |= {"step": float(step), "rollouts": 64.0 * step}
        if step % 2 == 0:
            row["dev_em"] = 0.8
        if changed and step >= ONSET:
            row |= {name: value for name, value in changed.items() if name in row or "/" in name}
        rows.append(row)
    return rows


def told(rows, **training):
    monitor = HealthMonitor(new_detectors(TrainingConfig.model_validate(training)), lambda: 0.0)
    return [notice for row in rows for notice in monitor.observe(row)]


@pytest.mark.parametrize("name", FAULTS)
def test_each_detector_tells_its_fault_within_ten_steps(name):
    found = [notice for notice in told(history(changed=FAULTS[name])) if notice.detector == name]
    assert found
    assert ONSET <= found[0].since_step <= found[0].step <= ONSET + 10


def test_every_detector_has_a_fault_and_a_key():
    assert list(FAULTS) == list(DETECTORS) == list(get_args(DetectorName))


def test_healthy_noise_raises_at_most_one_alarm_in_forty_runs():
    alarms = [seed for seed in range(40) if told(history(seed, steps=60))]
    assert len(alarms) <= 1


def test_no_detector_speaks_of_constant_figures():
    rows = [{**START, "step": float(n), "rollouts": 64.0 * n, "dev_em": 0.5} for n in range(1, 90)]
    assert told(rows) == []


def test_rows_without_most_figures_are_taken():
    assert told([{"step": 1.0, "pass_rate": 0.0, "rollouts": 0.0}] * 20) == []


def test_an_ignored_detector_is_silent():
    rows = history(changed=FAULTS["mismatch"])
    assert not [
        it for it in told(rows, health={"ignore": ["mismatch"]}) if it.detector == "mismatch"
    ]


def test_a_policy_that_becomes_certain_and_right_is_not_told():
    rows = history(changed={"entropy": 0.05, "pass_rate": 0.7, "reward_spread": 0.05})
    assert [it.detector for it in told(rows) if it.detector in ("entropy", "reward_spread")] == []


def test_a_policy_that_learns_within_few_steps_is_not_told():
    rates = (0.15, 0.33, 0.65, 0.77, 0.78, 0.83, 0.78, 0.92, 0.99)  # SmolLM2 in the failures' world
    rows = [
        {"step": step, "pass_rate": rate, "rollouts": 90.0 * step}
        for step, rate in enumerate(rates, 1)
    ]
    assert told(rows) == []


def heldout_gaps(score, **training):
    """Findings on a dev score that falls to `score` while training stays as it was."""
    found = told(history(changed={"dev_em": score}), **training)
    return [it for it in found if it.detector == "heldout_gap"]


def test_a_fall_that_few_dev_questions_explain_is_not_told():
    assert heldout_gaps(0.65, dev_questions=300)
    assert not heldout_gaps(0.65, dev_questions=24)
    assert heldout_gaps(0.4, dev_questions=24)


def test_dev_scores_without_a_fall_are_rarely_told():
    rng = random.Random(0)
    told_runs = 0
    for _ in range(200):
        detector = HeldoutGap(questions=24)
        scores = [sum(rng.random() < 0.7 for _ in range(24)) / 24 for _ in range(13)]
        rows = [
            {"step": 2.0 * n, "pass_rate": 0.5, "dev_em": it}
            for n, it in enumerate(scores, start=1)
        ]
        told_runs += any(detector.observe(row) is not None for row in rows)
    assert told_runs <= 4


def heldout_falls(start, scores):
    """Steps at which a policy of this dev score before training is told to have fallen."""
    monitor = HealthMonitor(new_detectors(TrainingConfig(dev_questions=24)), lambda: 0.0)
    monitor.begin(start)
    rows = [
        row | {"dev_em": score}
        for row, score in zip(history(steps=len(scores)), scores, strict=True)
    ]
    found = [notice for row in rows for notice in monitor.observe(row)]
    return [it.step for it in found if it.detector == "heldout_fall"]


def test_a_policy_that_falls_at_once_is_told():
    assert heldout_falls(0.92, [0.04, 0.08, 0.0]) == [1]
    assert heldout_falls(None, [0.04, 0.08, 0.0]) == []  # an earlier version's checkpoint
    assert heldout_falls(0.92, [0.7, 0.65, 0.92, 0.3, 0.9, 0.2]) == [4, 6]


def test_a_notice_names_the_reward_term_that_rose():
    rows = history(changed=FAULTS["paid_though_wrong"])
    for row in rows:
        row["wrong_reward/format"] = 0.08
        if row["step"] >= ONSET:
            row["wrong_reward/length"] = 0.5
    [notice] = [it for it in told(rows) if it.detector == "paid_though_wrong"]
    assert "(most of it wrong_reward/length)" in notice.message


def clipping(share, since=1, **training):
    rows = [row | {"clipped_share": share} if row["step"] >= since else row for row in history()]
    return [it for it in told(rows, **training) if it.detector == "clipped"]


def test_clipped_sequences_are_told_only_where_they_rise():
    gspo = {"algorithm": {"preset": "gspo"}}
    assert clipping(0.3)
    assert not clipping(0.3, **gspo)
    assert clipping(0.9, since=ONSET, **gspo)


def test_figures_and_keys_of_detectors_exist():
    for detector in new_detectors(TrainingConfig()):
        assert step_figure(detector.figure) is not None or detector.figure.startswith("NAME/")
        section = Profile()
        for part in detector.key.split("."):
            assert part in type(section).model_fields, detector.key
            section = getattr(section, part)
