"""Episodes that a program plays: its environment, its deadline, how it is judged and lost."""

import asyncio
import json
import sys
import time

import pytest

from espalier.config import AgentConfig, Profile
from espalier.records import PolicyError, ProfileError
from espalier.records.trajectory import FinishReason
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.episode import ToolRunner
from espalier_interop.agents.player import agent_player
from tests.factories.records import make_task
from tests.factories.tiny import LookupSearch, lookup_environments, tiny_dialect
from tests.fakes.scripted_engine import ScriptedEngine

SEARCH = LookupSearch(("Lyon | country: France", "France | currency: Euro"))
TASK = make_task("t0", "What is the currency of the country of Lyon?", gold=("Euro",), hops=2)
RIGHT = "<think> answer </think> <answer> euro </answer>"
WRONG = "<think> answer </think> <answer> france </answer>"
UNREADABLE = "euro </answer>"
CALL = "<think> country </think> <search> lyon country </search>"
ASKS = """
TOOLS = []
import json, os, sys, urllib.request
def post(url, body):
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request, timeout=20))
def ask(messages):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    body = {"model": "m", "messages": messages, "tools": TOOLS}
    return post(url, body)["choices"][0]["message"]
def task():
    return json.loads(os.environ["ESPALIER_TASK"])["messages"]
"""
ASK_ONCE = "ask(task())\n"
BRIEF = {"deadline_s": 0.6, "call_timeout_s": 0.5}
POST_HALF = 'post(os.environ["ESPALIER_REWARD_URL"], {"reward": 0.5})\n'
STAYS = """
for line in sys.stdin:
    os.environ.update(json.loads(line))
    print("begins", flush=True)
    ask(task())
    over = {"attempt": os.environ["ESPALIER_ATTEMPT"], "status": 0}
    print(json.dumps(over | {"pid": os.getpid()}), flush=True)
"""


def play(program, *says, attempts=1, **agent):
    """The trajectories of attempts that a program plays, and the recorder."""
    command = (sys.executable, "-S", "-c", ASKS + program)
    config = AgentConfig(
        **{"command": command, "deadline_s": 30.0, "call_timeout_s": 10.0, **agent}
    )
    dialect = tiny_dialect()
    engine = ScriptedEngine(dialect, [dialect.text_ids(text) for text in says])
    tools = ToolRunner(workers=0, timeout_s=5.0)

    async def run():
        async with agent_player(
            config, engine, dialect, lookup_environments(SEARCH), tools, Profile().episode
        ) as player:
            found = [
                await player.play(TASK, Sampling(temperature=1.0, seed=n)) for n in range(attempts)
            ]
            return found, player.recorder

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("says", "outcome", "reason"),
    [
        (RIGHT, 1.0, FinishReason.ANSWERED),
        (WRONG, 0.0, FinishReason.ANSWERED),
        (UNREADABLE, 0.0, FinishReason.PARSE_ERROR),
        (CALL, 0.0, FinishReason.MAX_TURNS),
    ],
)
def test_the_family_judges_what_was_answered_last(says, outcome, reason):
    program = ASK_ONCE
    if says == CALL:
        program = 'TOOLS = [{"type": "function", "function": {"name": "search"}}]\nask(task())\n'
    (trajectory,), recorder = play(program, says)
    assert trajectory.reward["outcome"] == outcome
    assert trajectory.finish_reason is reason
    assert (trajectory.task_id, trajectory.policy_version) == ("t0", 3)
    assert recorder.counts.whole == 1
    assert sum(trajectory.action_mask) == len(tiny_dialect().text_ids(says))


def test_a_posted_reward_is_taken_where_the_profile_says_so():
    (trajectory,), _ = play(ASK_ONCE + POST_HALF, WRONG, score="posted")
    assert trajectory.reward == {"outcome": 0.5}


@pytest.mark.parametrize(
    ("program", "agent", "reason"),
    [
        (ASK_ONCE, {"score": "posted"}, FinishReason.NO_REWARD),
        ("sys.exit(3)", {}, FinishReason.AGENT_FAILED),
        ("pass", {}, FinishReason.AGENT_FAILED),
        ("import time; time.sleep(60)", BRIEF, FinishReason.TIMEOUT),
    ],
)
def test_an_attempt_that_is_not_whole_is_never_scored(program, agent, reason):
    began_s = time.monotonic()
    (trajectory,), recorder = play(program, WRONG, **agent)
    assert (trajectory.finish_reason, trajectory.reward) == (reason, {})
    assert trajectory.is_lost
    assert recorder.counts.lost == {reason: 1}
    assert recorder.open_attempts == 0
    assert time.monotonic() - began_s < 20


def test_a_program_gets_none_of_our_variables(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("OPENAI_API_KEY", "the real one")
    seen = tmp_path / "seen.json"
    program = f"json.dump(dict(os.environ), open({str(seen)!r}, 'w'))\n"
    play(program, variables={"MINE": "yes"})
    variables = json.loads(seen.read_text())
    assert "AWS_SECRET_ACCESS_KEY" not in variables
    assert variables["MINE"] == "yes"
    assert variables["OPENAI_API_KEY"] != "the real one"
    told = json.loads(variables["ESPALIER_TASK"])
    assert told["messages"][0]["content"] == TASK.prompt[0].content
    assert "Euro" not in variables["ESPALIER_TASK"], "what the verifier knows is not told"
    assert {tool["function"]["name"] for tool in told["tools"]} == {"search"}


def test_children_that_a_program_leaves_behind_are_ended(tmp_path):
    seen = tmp_path / "pid"
    program = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(seen)!r}, 'w').write(str(child.pid))\n" + ASK_ONCE
    )
    play(program, RIGHT)
    pid = int(seen.read_text())
    end_s = time.monotonic() + 5
    while _runs(pid) and time.monotonic() < end_s:
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_program_that_stays_plays_several_attempts():
    found, recorder = play(STAYS, RIGHT, WRONG, RIGHT, attempts=3, tasks_per_process=2)
    assert [one.reward["outcome"] for one in found] == [1.0, 0.0, 1.0]
    assert recorder.counts.whole == 3
    dies = STAYS.replace("    ask(task())\n", "    ask(task())\n    os._exit(4)\n")
    found, _ = play(dies, RIGHT, RIGHT, attempts=2, tasks_per_process=5)
    assert [one.finish_reason for one in found] == [FinishReason.AGENT_FAILED] * 2


LOOKALIKES = (
    {"status": 0}, {"status": 1}, {"status": 200, "path": "/v1/chat"}, {"status": True},
    {"attempt": "", "status": 0}, {"attempt": None, "status": 0}, {"attempt": 3, "status": 0},
    {"attempt": "ESPALIER_ATTEMPT", "status": 0}, {"attempt": ["x"], "status": 0},
    {"status": 0, "pid": 1}, {"said": '{"attempt": "", "status": 0}', "status": 0}, {},
)  # fmt: skip


def test_logs_that_look_like_an_end_end_no_attempt():
    lines = "".join(f"    print({json.dumps(one)!r}, flush=True)\n" for one in LOOKALIKES)
    unended = '    print(json.dumps({"attempt": os.environ["ESPALIER_ATTEMPT"]}), flush=True)\n'
    noisy = STAYS.replace("    ask(task())\n", f"{lines}{unended}    ask(task())\n{lines}")
    found, recorder = play(noisy, RIGHT, WRONG, RIGHT, RIGHT, attempts=4, tasks_per_process=4)
    assert [one.reward["outcome"] for one in found] == [1.0, 0.0, 1.0, 1.0]
    assert recorder.counts.whole == 4


def test_the_end_of_an_earlier_attempt_ends_no_later_one():
    repeats = STAYS.replace(
        "    over =", "    before = locals().get('over')\n    print(json.dumps(before))\n    over ="
    )
    found, _ = play(repeats, RIGHT, RIGHT, RIGHT, attempts=3, tasks_per_process=3)
    assert [one.reward["outcome"] for one in found] == [1.0, 1.0, 1.0]


def test_a_program_that_always_fails_ends_the_run():
    with pytest.raises(PolicyError, match="no such file"):
        play("sys.exit('no such file')", attempts=9)


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(ProfileError, match="/nowhere/agent"):
        play("", command=("/nowhere/agent",))
