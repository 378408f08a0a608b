"""Agents written with real packages, in venvs of their own: recorded as the engine answered."""

from pathlib import Path

import pytest

from espalier.config import AgentConfig
from tests.factories.records import make_task
from tests.interop.venvs import python_of
from tests.interop.witness import call, played

AGENTS = Path(__file__).parent / "agents"
ASKED = "send {} of the article lamp to oslo on a ship , what is the fee ?"
MADE = {
    "openai-agents by responses": ("openai_agents", "openai_agents_busy.py", {"BY": "responses"}),
    "openai-agents by chat": ("openai_agents", "openai_agents_busy.py", {"BY": "chat"}),
    "langgraph by chat": ("langgraph", "langgraph_busy.py", {}),
    "anthropic by messages": ("anthropic", "anthropic_busy.py", {}),
}


def rule(text, dice):
    """What the policy writes next; each answer ends with a number that tells it from others."""
    asked = text.rpartition("<|im_start|>assistant")[0]
    number = dice.randrange(10**6)
    if "You are the helper." in asked:
        return f"the helper was asked {number}"
    last = asked.rpartition("<|im_start|>")[2]
    if "the helper was asked" in last or ("Go on" in asked and "lies on" in last):
        return f"done {number}"
    if "lies on a river" in last:
        return call("ask_helper", input=f"what now {number}")
    return call("look_up", town=f"town{number}")


@pytest.mark.parametrize("made", MADE)
def test_recorded_tokens_equal_the_engines_in_every_call(made):
    venv, program, variables = MADE[made]
    config = AgentConfig(
        command=(str(python_of(venv)), str(AGENTS / program)), variables=variables,
        score="posted", deadline_s=200.0,
    )  # fmt: skip
    task = make_task("t", "hello", gold=("x",))
    (trajectory,), (attempt,), witness = played(config, rule, task)
    assert attempt.lost == "no_reward", f"nothing else was wrong: {attempt.lost_because}"
    recorded = [(c.prompt_ids, c.answer_ids, c.logprobs) for c in attempt.graph.calls]
    assert sorted(recorded) == sorted(witness.answered)
    assert len(recorded) == 2 * 4 + 2, "two runs of four calls, and two after compaction"
    assert attempt.foreign_messages == 0
    parents = attempt.graph.parents()
    assert parents.count(None) == 2 + 2 + 1, "retries, their helpers, the compacted conversation"
    trained = sum(trajectory.action_mask)
    assert trained == sum(len(answer) for _, answer, _ in witness.answered)
    assert len(trajectory.windows) == 5


def sells_lamps(text, _dice):
    """Weigh, ask for the fee, answer with it, and with too much for seven lamps."""
    asked = text.rpartition("<|im_start|>assistant")[0]
    count = int(asked.partition("send ")[2].partition(" ")[0])
    last = asked.rpartition("<|im_start|>")[2]
    if "what is the fee" in last:
        return call("weigh", item="lamp", count=count)
    if str(10 * count) in last:
        return str(10 * count + (count == 7))
    return call("fee", kilograms=5 * count, carrier="sea")


def test_the_scorer_of_a_task_of_inspect_rewards_the_attempt():
    config = AgentConfig(
        command=(str(python_of("inspect")), str(AGENTS / "inspect_player.py")), score="posted",
        deadline_s=120.0, tasks_per_process=2, processes=1,
    )  # fmt: skip
    tasks = [make_task(f"t{n}", ASKED.format(n), gold=(str(10 * n),)) for n in (3, 7)]
    found, _, witness = played(config, sells_lamps, *tasks)
    assert [one.reward["outcome"] for one in found] == [1.0, 0.0]
    assert len(witness.answered) == 2 * 3
    trained = sum(sum(one.action_mask) for one in found)
    assert trained == sum(len(answer) for _, answer, _ in witness.answered)
