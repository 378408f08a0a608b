"""A task of Inspect is played by a policy through the recorder, and its scorer rewards it."""

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
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.records import make_task
from tests.interop.venvs import python_of
from tests.interop.witness import Witness
from tests.unit.dialects.test_drift import STEADY

PLAYER = Path(__file__).parent / "agents" / "inspect_player.py"
ASKED = "send 7 of the article lamp to oslo on a ship , what is the fee ?"


def call(name, **arguments):
    told = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{told}\n</tool_call>"


def rule(fee):
    def write(text, _dice):
        last = text.rpartition("<|im_start|>assistant")[0].rpartition("<|im_start|>")[2]
        if ASKED in last:
            return call("weigh", item="lamp", count=7)
        return call("fee", kilograms=35, carrier="sea") if "35" in last else fee

    return write


@pytest.mark.parametrize(("answer", "reward"), [("70", 1.0), ("71", 0.0)])
def test_the_scorer_of_a_task_rewards_the_attempt(answer, reward):
    tokenizer = byte_tokenizer(
        STEADY, ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
    )
    dialect = Dialect(tokenizer, (), name="hermes")
    witness = Witness(dialect, rule(answer))
    config = AgentConfig(
        command=(str(python_of("inspect")), str(PLAYER)), score="posted", deadline_s=120.0,
        tasks_per_process=2,
    )  # fmt: skip

    async def play():
        nothing = Environments(family="none", tools=(), instructions="", make=None)
        limits = EpisodeConfig(max_tokens=20_000, max_turn_tokens=400)
        tools = ToolRunner(workers=0, timeout_s=5.0)
        async with agent_player(config, witness, dialect, nothing, tools, limits) as player:
            task = make_task("t", ASKED, gold=("70",))
            return await player.play(task, Sampling(temperature=1.0, seed=3))

    trajectory = asyncio.run(play())
    assert trajectory.reward["outcome"] == reward
    assert len(witness.answered) == 3
    assert sum(trajectory.action_mask) == sum(len(answer) for _, answer, _ in witness.answered)
