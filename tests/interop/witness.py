"""An engine that plays by a rule and remembers, by itself, each call that it answered."""

import random
from contextlib import asynccontextmanager

from espalier.rollout.engines.engine import Completion, EngineCounters


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
        return _Session(self, tuple(prompt_ids), random.Random(sampling.seed))

    def answer(self, prompt_ids, dice, max_tokens):
        text = self._rule(self._dialect.text(prompt_ids), dice)
        written = self._dialect.text_ids(text)
        token_ids = written[:max_tokens]
        logprobs = tuple(-dice.random() for _ in token_ids)
        self.answered.append((prompt_ids, token_ids, logprobs))
        return Completion(token_ids, logprobs, len(token_ids) == len(written))


class _Session:
    def __init__(self, witness, prompt_ids, dice):
        self._witness, self._prompt_ids, self._dice = witness, prompt_ids, dice

    async def sample(self, *, max_tokens):
        return self._witness.answer(self._prompt_ids, self._dice, max_tokens)

    def observe(self, token_ids):
        raise AssertionError("each call opens a session of its own")

    def close(self):
        pass
