from dataclasses import replace

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
