from dataclasses import replace

import pytest

from espalier.config import TrainingConfig
from espalier.records import ToolCall
from espalier.records.trajectory import ToolResult
from espalier.training.health import HealthMonitor, new_detectors
from tests.factories.records import make_trajectory
from tests.unit.training.health.test_rules import FAULTS, history, told


def calling(task_id, *, exists):
    call = ToolCall(name="search", arguments={"query": "lyon"})
    result = ToolResult(call=call, content="", succeeded=exists, exists=exists)
    return make_trajectory(task_id, tool_results=(result,))


def test_a_notice_names_the_attempts_that_show_it():
    sampled = [calling("a", exists=True), calling("a", exists=False), calling("b", exists=False)]
    monitor = HealthMonitor(new_detectors(TrainingConfig()), lambda: 5.0)
    rows = history(changed=FAULTS["unknown_calls"])
    [notice] = [n for row in rows for n in monitor.observe(row, sampled)]
    assert notice.attempts == (f"{notice.step}/a/1", f"{notice.step}/b/0")
    assert notice.figure == "unread_calls/unknown_tool"
    assert (notice.severity, notice.key, notice.time) == ("warning", "environment", 5.0)


def test_a_noisy_verifier_is_shown_by_answers_with_two_verdicts():
    right = {"answer": "jade", "reward": {"outcome": 1.0}}
    wrong = {"answer": "jade", "reward": {"outcome": 0.0}}
    sampled = [make_trajectory("a", **right), make_trajectory("a", **wrong)]
    sampled += [make_trajectory("b", **right), make_trajectory("b", **right)]
    monitor = HealthMonitor(new_detectors(TrainingConfig()), lambda: 0.0)
    rows = history(changed=FAULTS["disputed"])
    [notice] = [n for row in rows for n in monitor.observe(row, sampled)]
    assert notice.attempts == (f"{notice.step}/a/0", f"{notice.step}/a/1")


def test_a_notice_of_a_judge_names_its_own_column():
    [notice] = told(history(changed=FAULTS["rule_against_judge"]))
    assert notice.figure == "judges/kappa_with_rule"


def test_a_rise_is_over_the_median_of_the_first_steps():
    monitor = HealthMonitor(new_detectors(TrainingConfig()), lambda: 0.0)
    rows = [{"wrong_reward/format": value} for value in (0.1, 0.9, 0.1, 0.1, 0.2, 0.1)]
    monitor.replay([row | {"step": 1.0, "pass_rate": 0.0, "rollouts": 0.0} for row in rows])
    last = {"step": 7.0, "pass_rate": 0.0, "rollouts": 0.0}
    monitor.observe(last | {"wrong_reward/format": 0.05, "wrong_reward/judges": 0.4})
    assert monitor.risen("wrong_reward/") == pytest.approx({"format": -0.05, "judges": 0.4})


def test_a_resumed_monitor_tells_what_an_unbroken_one_does():
    rows = history(changed=FAULTS["grounded_right"] | FAULTS["length_rise"])
    unbroken = told(rows)
    for done in range(len(rows)):
        resumed = HealthMonitor(new_detectors(TrainingConfig()), lambda: 0.0)
        resumed.replay(rows[:done])
        later = [notice for row in rows[done:] for notice in resumed.observe(row)]
        assert later == [notice for notice in unbroken if notice.step > done]


def test_the_line_of_a_notice_says_since_when():
    [notice] = told(history(changed=FAULTS["repeated_calls"]))
    line = replace(notice, attempts=("17/a/0",)).line()
    assert line.startswith(f"warning: step {notice.step}: repeated_calls since step 13: ")
    assert line.endswith("attempts 17/a/0; see reward.terms")
