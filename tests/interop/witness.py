"""An engine that plays by a rule and remembers, by itself, each call that it answered."""

import asyncio
import json
import random
from contextlib import asynccontextmanager

from espalier.config import EpisodeConfig
from espalier.dialects.dialect import Dialect
from espalier.environments import Environments
from espalier.rollout.engines.engine import Completion, EngineCounters, Sampling
from espalier.rollout.episode import ToolRunner
from espalier_interop.agents.player import agent_player
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.unit.dialects.test_drift import STEADY


def hermes(*markers):
    tokenizer = byte_tokenizer(STEADY, ("<|im_start|>", "<|im_end|>", *markers))
    return Dialect(tokenizer, (), name="hermes")


def call(name, **arguments):
    told = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{told}\n</tool_call>"


def played(config, rule, *tasks):
    """The trajectories of tasks that an agent plays side by side, its attempts, and the engine."""
    dialect, attempts = hermes("<tool_call>", "</tool_call>"), []
    witness = Witness(dialect, rule)

    async def play():
        nothing = Environments(family="none", tools=(), instructions="", make=None)
        limits = EpisodeConfig(max_tokens=20_000, max_turn_tokens=400)
        tools = ToolRunner(workers=0, timeout_s=5.0)
        async with agent_player(config, witness, dialect, nothing, tools, limits) as player:
            close = player.recorder.close
            player.recorder.close = lambda one: (attempts.append(one), close(one))[1]
            sampling = Sampling(temperature=1.0, seed=3)
            return await asyncio.gather(*(player.play(task, sampling) for task in tasks))

    return asyncio.run(play()), attempts, witness


class Witness:
    """Writes what `rule` says of the text of a context; the log-probs are random."""

    def __init__(self, dialect, rule):
        self.policy_version = 5
        self.counters = EngineCounters()
        self.answered = []
        """(prompt, answer, log-probs) of each call."""
        self._dialect = dialect
        self._rule = rule

    @asynccontextmanager
    async def serving(self):
        yield

    async def open(self, prompt_ids, sampling):
        return _Session(self, prompt_ids, sampling)

    def answer(self, prompt_ids, dice, max_tokens):
        text = self._rule(self._dialect.text(prompt_ids), dice)
        written = self._dialect.text_ids(text)
        token_ids = written[:max_tokens]
        logprobs = tuple(-dice.random() for _ in token_ids)
        self.answered.append((prompt_ids, token_ids, logprobs))
        return Completion(token_ids, logprobs, len(token_ids) == len(written))


class _Session:
    """Goes on after what is observed, as the episode loop has it."""

    def __init__(self, witness, prompt_ids, sampling):
        self._witness, self._context = witness, tuple(prompt_ids)
        self._dice = random.Random(sampling.seed)

    async def sample(self, *, max_tokens):
        said = self._witness.answer(self._context, self._dice, max_tokens)
        self._context += said.token_ids
        return said

    def observe(self, token_ids):
        self._context += tuple(token_ids)

    def close(self):
        pass
