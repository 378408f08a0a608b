"""Playing one episode on the double, and policy directories that only look like some."""

import asyncio
import json

from espalier.config import VllmConfig
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.engines.vllm import VllmServerEngine
from tests.fakes.vllm_double import STOP_ID


class StopsAtOneId:
    stop_ids = frozenset({STOP_ID})
    stop_texts = ("</answer>",)

    def ends_action(self, action_ids):
        return action_ids[-1] == STOP_ID


def policy_at(directory, weights=b"weights", **changes):
    directory.mkdir()
    shape = {"hidden_size": 32, "tie_word_embeddings": False, "transformers_version": "5"} | changes
    (directory / "config.json").write_text(json.dumps(shape))
    (directory / "model.safetensors").write_bytes(weights)
    return directory


def engine_of(server, **changes):
    settings = {"urls": (server.url,), "attempts": 3, "ready_timeout_s": 5, "request_timeout_s": 5}
    config = VllmConfig(**(settings | changes))
    return VllmServerEngine(config, StopsAtOneId(), max_rows=4, backoff_s=0.001)


def play(engine, policy_dir, script, sampling=None):
    async def episode():
        await engine.load_weights(policy_dir, 1)
        async with engine.serving():
            session = await engine.open([1, 2, 3], sampling or Sampling(temperature=0.7, seed=4))
            result = await script(session)
            session.close()
            return result

    return asyncio.run(episode())


def sample_once(max_tokens=40):
    return lambda session: session.sample(max_tokens=max_tokens)
