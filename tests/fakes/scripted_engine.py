"""An engine that says what a test tells it to, and remembers what it was shown."""

import asyncio
from contextlib import asynccontextmanager

from espalier.rollout.engines.engine import Completion, EngineCounters


class ScriptedSession:
    def __init__(self, engine, prompt_ids):
        self._engine = engine
        self.context = list(prompt_ids)
        self.is_open = True

    def observe(self, token_ids):
        self.context += token_ids

    async def sample(self, *, max_tokens):
        await asyncio.sleep(0)
        token_ids = tuple(self._engine.actions.pop(0))[:max_tokens]
        self.context += token_ids
        stopped = self._engine.stop_rule.ends_action(token_ids)
        return Completion(token_ids, (-0.5,) * len(token_ids), stopped)

    def close(self):
        self.is_open = False


class ScriptedEngine:
    """Its sessions take their actions from one list of token ids, in the order of asking."""

    failure = None

    def __init__(self, stop_rule, actions):
        self.policy_version = 3
        self.counters = EngineCounters()
        self.stop_rule = stop_rule
        self.actions = [list(action) for action in actions]
        self.sessions = []
        self.samplings = []

    @asynccontextmanager
    async def serving(self):
        yield

    async def open(self, prompt_ids, sampling):
        self.sessions.append(ScriptedSession(self, prompt_ids))
        self.samplings.append(sampling)
        return self.sessions[-1]
