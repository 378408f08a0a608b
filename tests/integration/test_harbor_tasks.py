"""Task folders of Harbor's are played in real sandboxes."""

import asyncio

import pytest

from espalier.environments.benchmarks import check_golds
from espalier.environments.teaching import play_script
from espalier.records import DataError, FinalAnswer, ToolCalls
from espalier.records.trajectory import FinishReason
from tests.factories.harbor import TEST, task_folder
from tests.factories.scripts import acting
from tests.unit.environments.harbor.test_reading import family

pytestmark = pytest.mark.usefixtures("local_sandboxes")


def played(found, task, *commands):
    calls = [ToolCalls.one("shell", {"command": command}) for command in commands]
    script = acting(*calls, FinalAnswer("done"))
    with found.benchmark_environments(found.settings.folders, None) as environments:
        return asyncio.run(play_script(environments, task, script))


def test_the_solution_of_each_task_is_rewarded(tmp_path):
    for name in ("one", "two", "three"):
        task_folder(tmp_path, name)
    found = family(tmp_path, sandbox={"packages": [], "size": 1})
    tasks = found.read_benchmark(tmp_path)
    with found.benchmark_environments(tmp_path, None) as environments:
        check = check_golds(found, tasks, environments)
    assert (check.accepted, check.refused, check.faults) == (3, 3, ())


def test_what_the_policy_did_is_what_the_tests_see(tmp_path):
    task_folder(tmp_path, "one")
    found = family(tmp_path, sandbox={"packages": [], "size": 1})
    (task,) = found.read_benchmark(tmp_path)
    right = played(found, task, "bash tools/say.sh you; pwd", "printf one > hello.txt")
    assert right.tool_results[0].content == "Hello you\n/app"
    assert (right.reward["outcome"], right.finish_reason) == (1.0, FinishReason.ANSWERED)
    forged = played(found, task, "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt")
    assert forged.reward["outcome"] == 0.0, "only what the tests write is a reward"
    hidden = played(found, task, "ls /tests /solution")
    assert "test.sh" not in hidden.tool_results[0].content
    assert "solve.sh" not in hidden.tool_results[0].content
    spoilt = played(found, task, "rm /logs; rm -rf /workspace/logs; touch /workspace/logs")
    full = "cat /dev/zero > /workspace/full; true"
    for one in (spoilt, played(found, task, full)):
        assert one.finish_reason is FinishReason.PROGRAM_BROKE_SANDBOX
        assert one.reward["outcome"] == 0.0


def test_failing_hanging_and_raising_tests_end_apart(tmp_path):
    # rllm#710: a crash of the verifier was the same 0.0 as an answer that is wrong
    test = TEST.replace(
        "mkdir", "[ -e /app/hang ] && sleep 30 | cat; [ -e /app/raise ] && exit 3\nmkdir"
    )
    task_folder(tmp_path, "one", files={"tests/test.sh": test})
    found = family(
        tmp_path,
        command_timeout_s=1.0,
        verifier_timeout_s=2.0,
        sandbox={"packages": [], "size": 1},
    )
    (task,) = found.read_benchmark(tmp_path)
    wrong = played(found, task, "true")
    assert (wrong.finish_reason, wrong.reward["outcome"]) == (FinishReason.ANSWERED, 0.0)
    for command in ("touch hang", "touch raise"):
        one = played(found, task, "printf one > hello.txt", command)
        assert one.finish_reason is FinishReason.PROGRAM_BROKE_SANDBOX
        assert one.reward["outcome"] == 0.0
    cut = played(found, task, "(printf one > hello.txt; echo early; sleep 30) | tee log")
    [result] = cut.tool_results
    assert not result.succeeded
    assert "early" in result.content
    assert "took too long" in result.content
    assert (cut.finish_reason, cut.reward["outcome"]) == (FinishReason.ANSWERED, 1.0)


def test_tests_that_never_reward_are_an_error(tmp_path):
    task_folder(tmp_path, "one", tests__test_sh=None, files={"tests/test.sh": "exit 3\n"})
    found = family(tmp_path, sandbox={"packages": [], "size": 1})
    (task,) = found.read_benchmark(tmp_path)
    with pytest.raises(DataError, match="the tests give no reward, not even where nothing"):
        played(found, task, "true")
