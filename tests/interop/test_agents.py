"""Agents written with real packages, in venvs of their own: recorded as the engine answered."""

import asyncio
import json
from pathlib import Path

import pytest

from espalier.config import AgentConfig, EpisodeConfig
from espalier.dialects.dialect import Dialect
from espalier.environments import Environments
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.episode import ToolRunner
from espalier_interop.agents.player import agent_player
from espalier_interop.recording.recorder import Recorder
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.records import make_task
from tests.interop.venvs import python_of
from tests.interop.witness import Witness
from tests.unit.dialects.test_drift import STEADY

AGENTS = Path(__file__).parent / "agents"
END = "<|im_end|>"
MADE = {
    "openai-agents by responses": ("openai_agents", "openai_agents_busy.py", {"BY": "responses"}),
    "openai-agents by chat": ("openai_agents", "openai_agents_busy.py", {"BY": "chat"}),
    "langgraph by chat": ("langgraph", "langgraph_busy.py", {}),
    "anthropic by messages": ("anthropic", "anthropic_busy.py", {}),
}


def call(name, **arguments):
    told = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{told}\n</tool_call>"


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
def test_recorded_tokens_equal_the_engines_in_every_call(made, monkeypatch):
    venv, program, variables = MADE[made]
    tokenizer = byte_tokenizer(STEADY, ("<|im_start|>", END, "<tool_call>", "</tool_call>"))
    dialect = Dialect(tokenizer, (), name="hermes")
    witness = Witness(dialect, rule)
    config = AgentConfig(
        command=(str(python_of(venv)), str(AGENTS / program)), variables=variables,
        score="posted", deadline_s=200.0,
    )  # fmt: skip
    graphs = []
    close = Recorder.close
    monkeypatch.setattr(
        Recorder, "close", lambda self, one: (graphs.append(one), close(self, one))[1]
    )

    async def play():
        nothing = Environments(family="none", tools=(), instructions="", make=None)
        limits = EpisodeConfig(max_tokens=20_000, max_turn_tokens=400)
        tools = ToolRunner(workers=0, timeout_s=5.0)
        async with agent_player(config, witness, dialect, nothing, tools, limits) as player:
            task = make_task("t", "hello", gold=("x",))
            sampling = Sampling(temperature=1.0, seed=3)
            return await player.play(task, sampling)

    trajectory = asyncio.run(play())
    (attempt,) = graphs
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
