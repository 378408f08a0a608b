"""Attempts that a server plays: the process between, and what is made of its answers."""

import asyncio
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from espalier.config import AgentConfig
from espalier.records import Message, ProfileError
from espalier_interop.verifiers import bridge
from espalier_interop.verifiers.runs import EnvServerRuns, read_answer, task_data
from tests.factories.records import make_task

VARIABLES = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "ESPALIER_MODEL": "policy"}
SERVES = """#!{python} -S
import json, os, socket, sys
config = json.loads(sys.argv[3])
listener = socket.socket(socket.AF_UNIX)
listener.bind(config["socket"] + ".new")
listener.listen(16)
os.rename(config["socket"] + ".new", config["socket"])
while True:
    one, _ = listener.accept()
    asked = json.loads(one.makefile("rb").readline())
    {then}
    one.close()
"""
ANSWERS = "one.sendall(json.dumps({'rewards': {'right': 1.0, 'brief': -0.25}}).encode() + b'\\n')"
SAYS_WHY = "#!{python} -S\nimport sys\nsys.exit('nothing here\\nno taskset is called so')\n"


def runs_of(tmp_path, program, **agent):
    """Runs whose process is `program`, in the place of an interpreter with verifiers."""
    python = tmp_path / "python"
    python.write_text(program.replace("{python}", sys.executable))
    python.chmod(0o755)
    verifiers = {"python": python, "taskset": "mine", "start_timeout_s": 20.0}
    config = AgentConfig(
        verifiers=verifiers, score="posted", **{"deadline_s": 20.0, "call_timeout_s": 0.1, **agent}
    )
    return EnvServerRuns(config)


def played(runs):
    try:
        return asyncio.run(runs.play(make_task("t", "what?", gold=("x",)), VARIABLES))
    finally:
        runs.end()


def test_one_process_plays_attempts_side_by_side(tmp_path):
    runs = runs_of(tmp_path, SERVES.replace("{then}", ANSWERS))

    async def play():
        task = make_task("t", "what?", gold=("x",))
        found = await asyncio.gather(*(runs.play(task, VARIABLES) for _ in range(3)))
        runs.end()  # a process that has ended is started anew
        return [*found, await runs.play(task, VARIABLES)]

    try:
        assert asyncio.run(play()) == [(0, "", {"outcome": 0.75})] * 4
    finally:
        runs.end()


@pytest.mark.parametrize(
    ("then", "status", "told"),
    [
        ("pass", 1, "ended during the run"),
        ("sys.exit()", 1, "ended during the run"),
        ("one.sendall(b'{}\\n')", 1, "no result"),
        ("import time; time.sleep(60)", None, ""),
    ],
)
def test_an_attempt_without_a_result_fails_alone(tmp_path, then, status, told):
    found = played(runs_of(tmp_path, SERVES.replace("{then}", then), deadline_s=1.5))
    assert (found.status, found.terms) == (status, None)
    assert told in found.told


def test_a_taskset_that_cannot_be_served_is_one_error(tmp_path):
    with pytest.raises(ProfileError, match="called so"):
        played(runs_of(tmp_path, SAYS_WHY))
    (tmp_path / "python").unlink()
    missing = AgentConfig(
        verifiers={"python": tmp_path / "python", "taskset": "mine"}, score="posted"
    )
    with pytest.raises(ProfileError, match="python"):
        played(EnvServerRuns(missing))


@given(st.binary() | st.text().map(str.encode))
def test_a_line_of_anything_is_no_reward(line):
    assert read_answer(line).terms is None


@pytest.mark.parametrize(
    ("line", "status", "terms"),
    [
        (b'{"rewards": {"a": 0.5, "b": 1}}', 0, {"outcome": 1.5}),
        (b'{"rewards": {"a": 0.5, "b": null}}', 0, None),
        (b'{"rewards": {}}', 0, None),
        (b'{"rewards": {"a": 1e999}}', 1, None),
        (b'{"rewards": {"a": 1e308, "b": 1e308}}', 0, None),
        (b'{"failed": "ProviderError: away"}', 1, None),
    ],
)
def test_every_reward_must_be_given(line, status, terms):
    found = read_answer(line)
    assert (found.status, found.terms) == (status, terms)


@pytest.mark.parametrize(
    "agent", [{"command": ["python"], "score": "posted"}, {"score": "verifier"}]
)
def test_a_taskset_is_not_judged_by_the_family(agent):
    with pytest.raises(ValidationError, match=next(iter(agent))):
        AgentConfig(verifiers={"python": "python", "taskset": "mine"}, **agent)


def test_a_task_brings_its_data_or_its_prompt():
    task = make_task("t", "what?", gold=("x",))
    assert task_data(task) == {"prompt": "what?"}
    brought = task.model_copy(update={"arguments": {"task_data": {"prompt": "p", "answer": "a"}}})
    assert task_data(brought) == {"prompt": "p", "answer": "a"}
    system = Message(role="system", content="be brief")
    told = task.model_copy(update={"prompt": (system, *task.prompt)})
    assert task_data(told)["prompt"][0] == {"role": "system", "content": "be brief"}


def trace(*, ok=True, errors=(), **rewards):
    told = {name: value and SimpleNamespace(value=value) for name, value in rewards.items()}
    return SimpleNamespace(ok=ok, errors=list(errors), rewards=told)


def episode(*traces, ok=True, errors=()):
    return SimpleNamespace(ok=ok, errors=list(errors), traces=list(traces))


FAULT = SimpleNamespace(type="HarnessError", message="exited 2")


@pytest.mark.parametrize(
    ("met", "told"),
    [
        (episode(trace(right=1.0, brief=None)), None),
        (episode(trace(right=1.0), ok=False), "end well"),
        (episode(trace(ok=False, errors=[FAULT])), "exited 2"),
        (episode(), "0 traces"),
        (episode(trace(), trace()), "2 traces"),
    ],
)
def test_an_episode_is_rewarded_only_where_it_went_well(met, told):
    found = bridge.result_of(met)
    if told is None:
        assert found == {"rewards": {"right": 1.0, "brief": None}}
    else:
        assert told in found["failed"]


def test_runs_of_a_server_that_is_away_end(monkeypatch):
    monkeypatch.setattr(bridge, "CHECK_EVERY_S", 0.001)

    class Away:
        async def health(self, timeout):
            return False

    async def watched():
        between = bridge.Bridge(Away(), "tcp://127.0.0.1:9")
        run = asyncio.create_task(asyncio.sleep(60))
        between.runs.add(run)
        watching = asyncio.create_task(between.watch())
        await asyncio.wait({run}, timeout=10)
        watching.cancel()
        return between.told(run)

    assert "tcp://127.0.0.1:9" in asyncio.run(watched())["failed"]
