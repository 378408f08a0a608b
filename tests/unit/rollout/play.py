"""Running sessions on a lock-step engine, as episodes do."""

import asyncio
from functools import partial

import numpy as np
import torch

from espalier.rollout.engines.engine import Sampling
from espalier.rollout.engines.lockstep import LockstepEngine
from tests.factories.causal_models import CASES, VOCABULARY


class StopsAt:
    """A stop rule of single ids."""

    def __init__(self, *stop_ids, stop_texts=()):
        self.stop_ids = frozenset(stop_ids)
        self.stop_texts = stop_texts

    def ends_action(self, action_ids):
        return action_ids[-1] in self.stop_ids


NEVER = StopsAt()
STOPS_OFTEN = StopsAt(*range(20, VOCABULARY, 3))


def engine_over(name="fused lfm2", stop_rule=STOPS_OFTEN, *, max_rows=8, speculation="off"):
    decoder_class, build = CASES[name]
    return LockstepEngine(
        build(), decoder_class(build()), stop_rule, max_rows=max_rows, speculation=speculation
    )


def run_sessions(engine, *episodes):
    """Run coroutine functions of the engine side by side and return what each returns."""

    async def run():
        async with engine.serving():
            return await asyncio.gather(*(episode(engine) for episode in episodes))

    return asyncio.run(run())


async def play_turns(engine, prompt_ids, sampling, *, observations=(), max_tokens=12):
    """One action, and another after each observation.

    Returns:
        The context at the end, the mask of what was sampled, and its log-probs.
    """
    session = await engine.open(prompt_ids, sampling)
    context, mask, logprobs = list(prompt_ids), [0] * len(prompt_ids), []
    for observed in ((), *observations):
        session.observe(observed)
        action = await session.sample(max_tokens=max_tokens)
        context += [*observed, *action.token_ids]
        mask += [0] * len(observed) + [1] * len(action.token_ids)
        logprobs += action.logprobs
    session.close()
    return context, mask, logprobs


def turns(prompt_ids, *, seed=0, temperature=1.0, observations=(), max_tokens=12, **sampling):
    drawing = Sampling(temperature=temperature, seed=seed, **sampling)
    return partial(
        play_turns,
        prompt_ids=prompt_ids,
        sampling=drawing,
        observations=observations,
        max_tokens=max_tokens,
    )


def plain_logprobs(model, context, mask, *, temperature=1.0):
    """Log-probs of the sampled tokens by one forward of the whole context."""
    ids = torch.tensor([context])
    with torch.no_grad():
        logits = model(ids).logits[0, :-1] / temperature
    scored = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return scored[torch.tensor(mask[1:], dtype=torch.bool)]


def assert_same(found, expected):
    """The same tokens, and log-probs up to rounding."""
    for one, other in zip(found, expected, strict=True):
        assert one[:2] == other[:2]
        np.testing.assert_allclose(one[2], other[2], atol=1e-5)
