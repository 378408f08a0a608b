"""The vLLM engine against a real server: `python -m tests.benchmarks.peers vllm` installs one."""

import asyncio

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from espalier.config import Profile, VllmConfig
from espalier.policy.loading import Policy, load_policy, save_policy
from espalier.rollout.engines.engine import KindChoice, Sampling
from espalier.rollout.engines.vllm import VllmServerEngine
from espalier.rollout.roller import Roller
from tests.factories.tiny import LookupSearch, lookup_environments, tiny_tokenizer
from tests.factories.training import make_task
from tests.fakes.vllm_process import NEEDS_VLLM, PROMPT, PYTHON, NeverStops, vllm_process

pytestmark = [pytest.mark.slow, NEEDS_VLLM]


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    return [_policy(tmp_path_factory.mktemp("policies") / str(seed), seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def address(policies, tmp_path_factory):
    log = tmp_path_factory.mktemp("vllm") / "log"
    with vllm_process(PYTHON, policies[0], log, more=["--enforce-eager"]) as (url, _):
        yield url


def _policy(directory, seed):
    torch.manual_seed(seed)
    tokenizer = tiny_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32, max_position_embeddings=1024,
        tie_word_embeddings=False, initializer_range=0.3,
    )  # fmt: skip
    save_policy(Policy(Qwen3ForCausalLM(config), tokenizer), directory)
    return directory


def _roll(address, policy_dir, samplings, turns=2):
    """Two turns with an observation between for each sampling, side by side."""
    engine = VllmServerEngine(VllmConfig(urls=(address,)), NeverStops(), max_rows=8)

    async def episode(sampling):
        session = await engine.open(PROMPT, sampling)
        token_ids, logprobs = list(PROMPT), []
        for _ in range(turns):
            action = await session.sample(max_tokens=12)
            session.observe([30, 31, 32])
            token_ids += [*action.token_ids, 30, 31, 32]
            logprobs += [*action.logprobs, None, None, None]
        session.close()
        return token_ids, logprobs

    async def roll():
        await engine.load_weights(policy_dir, 0)
        async with engine.serving():
            return await asyncio.gather(*map(episode, samplings))

    return asyncio.run(roll())


def _logprobs_of_transformers(policy_dir, token_ids, sampling, prompt_tokens):
    model = load_policy(policy_dir).model
    with torch.inference_mode():
        logits_TV = model(torch.tensor([token_ids])).logits[0, prompt_tokens - 1 : -1]
    if sampling.temperature:
        logits_TV = logits_TV / sampling.temperature
    if sampling.top_k:
        least_T1 = logits_TV.topk(sampling.top_k).values[:, -1:]
        logits_TV = logits_TV.masked_fill(logits_TV < least_T1, -torch.inf)
    if sampling.top_p < 1:
        sorted_TV, order_TV = logits_TV.softmax(-1).sort(descending=True)
        drop_TV = sorted_TV.cumsum(-1) - sorted_TV >= sampling.top_p
        logits_TV = logits_TV.masked_fill(drop_TV.gather(1, order_TV.argsort()), -torch.inf)
    chosen_T1 = torch.tensor(token_ids[prompt_tokens:])[:, None]
    return logits_TV.log_softmax(-1).gather(1, chosen_T1)[:, 0].tolist()


@pytest.mark.parametrize("which", [1, 0])
def test_log_probs_are_those_of_the_weights_that_were_loaded(address, policies, which):
    samplings = [
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=0.0, seed=1),
        Sampling(temperature=0.7, seed=1, top_k=5),
        Sampling(temperature=1.3, seed=1, top_p=0.6),
    ]
    episodes = _roll(address, policies[which], samplings)
    for (token_ids, logprobs), sampling in zip(episodes, samplings, strict=True):
        expected = _logprobs_of_transformers(policies[which], token_ids, sampling, len(PROMPT))
        pairs = [(a, b) for a, b in zip(logprobs, expected, strict=True) if a is not None]
        assert max(abs(a - b) for a, b in pairs) < 1e-4


def test_a_seed_gives_the_same_tokens_beside_other_sessions(address, policies):
    alone = _roll(address, policies[0], [Sampling(temperature=1.0, seed=5)])
    beside = _roll(address, policies[0], [Sampling(temperature=1.0, seed=s) for s in range(8)])
    assert beside[5][0] == alone[0][0]
    assert len({tuple(token_ids) for token_ids, _ in beside}) == 8


def test_a_mixed_choice_of_kind_follows_its_token(address, policies):
    alone = _roll(address, policies[0], [Sampling(temperature=1.0, seed=3)])
    after_id = alone[0][0][len(PROMPT) + 4]
    choice = KindChoice(epsilon=1.0, after_id=after_id, kind_ids=(40, 41))
    mixed = _roll(
        address, policies[0], [Sampling(temperature=1.0, seed=3, kind_choice=choice)], turns=1
    )
    action, logprobs = mixed[0][0][len(PROMPT) : -3], mixed[0][1][:-3]
    at = action.index(after_id) + 1
    assert action[at] in (40, 41)
    assert logprobs[at] == pytest.approx(-0.6931, abs=1e-4)


def test_a_roller_plays_its_episodes_on_the_server(address, policies):
    profile = Profile.model_validate(
        {
            "rollout": {"engine": "vllm", "max_rows": 4, "vllm": {"urls": [address]}},
            "episode": {"max_turns": 2, "max_tokens": 64, "max_turn_tokens": 14},
        }
    )
    roller = Roller.open(
        policies[1], lookup_environments(LookupSearch(["lyon country: France"]), profile), profile
    )
    rolled = roller.roll_out([make_task("lyon")], samples=6, temperature=1.0, seed=1)
    assert len({trajectory.token_ids for trajectory in rolled}) == 6
    for trajectory in rolled:
        prompt_tokens = trajectory.action_mask.index(1)
        expected = _logprobs_of_transformers(
            policies[1], trajectory.token_ids, Sampling(temperature=1.0, seed=1), prompt_tokens
        )
        for place, on in enumerate(trajectory.action_mask):
            if on:
                found = trajectory.behavior_logprobs[place]
                assert found == pytest.approx(expected[place - prompt_tokens], abs=1e-4)
