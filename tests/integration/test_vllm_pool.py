"""Two real vLLM servers as one engine, with adapters: `python -m tests.benchmarks.peers vllm`."""

import asyncio
import os
import signal
from contextlib import ExitStack

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from espalier.config import LoraConfig, VllmConfig
from espalier.policy.loading import Policy, load_policy, save_policy
from espalier.policy.lora import add_adapter
from espalier.records.adapter import AdapterBase
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.engines.vllm import VllmServerEngine
from tests.factories.tiny import tiny_tokenizer
from tests.fakes.vllm_process import NEEDS_VLLM, PROMPT, PYTHON, NeverStops, vllm_process

OBSERVED = [30, 31, 32]
VERSIONS, READY_S = 20, 1800.0
LORA = ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "2", "--enforce-eager"]

pytestmark = [pytest.mark.slow, NEEDS_VLLM]


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """The base model, whose embeddings are tied, and policies with an adapter on it."""
    folder, tokenizer = tmp_path_factory.mktemp("policies"), tiny_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32, max_position_embeddings=1024,
        tie_word_embeddings=True, initializer_range=0.1,
    )  # fmt: skip
    save_policy(Policy(Qwen3ForCausalLM(config), tokenizer), folder / "base")
    return [folder / "base", *(_adapted(folder, version) for version in range(1, VERSIONS))]


def _adapted(folder, version):
    model = load_policy(folder / "base").model
    add_adapter(model, LoraConfig(rank=8, alpha=16), seed=version)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "lora_B" in name:
                weights.normal_(0, 0.1)
    base = AdapterBase(name="base", digest="0" * 64)
    save_policy(Policy(model, tiny_tokenizer(), base), folder / f"v{version}")
    return folder / f"v{version}"


@pytest.fixture(scope="module")
def servers(policies, tmp_path_factory):
    logs = tmp_path_factory.mktemp("vllm")
    with ExitStack() as stack:
        started = [
            vllm_process(PYTHON, policies[0], logs / str(core), cores=str(core), more=LORA)
            for core in range(2)
        ]
        yield [stack.enter_context(one) for one in started]


def _engine(addresses, **changes):
    config = VllmConfig(
        urls=tuple(addresses), exchange="adapter", ready_timeout_s=READY_S, **changes
    )
    return VllmServerEngine(config, NeverStops(), max_rows=64)


def _logprobs_of_transformers(policy_dir, token_ids):
    with torch.inference_mode():
        logits_TV = load_policy(policy_dir).model(torch.tensor([token_ids])).logits[0, :-1]
    chosen_T1 = torch.tensor(token_ids[1:])[:, None]
    return [None, *logits_TV.log_softmax(-1).gather(1, chosen_T1)[:, 0].tolist()]


def test_a_conversation_reads_no_keys_of_former_weights(servers, policies):
    """Every turn of one conversation has weights of its own, and the prompt's keys are cached."""
    engine = _engine(url for url, _ in servers)

    async def conversation():
        await engine.load_weights(policies[0], 0)
        async with engine.serving():
            session = await engine.open(PROMPT, Sampling(temperature=1.0, seed=1))
            context, gaps = list(PROMPT), []
            for version, policy_dir in enumerate(policies):
                await engine.load_weights(policy_dir, version)
                action = await session.sample(max_tokens=12)
                begins = len(context)
                context += action.token_ids
                expected = _logprobs_of_transformers(policy_dir, context)[begins:]
                gaps.append(max(abs(a - b) for a, b in zip(action.logprobs, expected, strict=True)))
                session.observe(OBSERVED)
                context += OBSERVED
            session.close()
            return gaps

    gaps = asyncio.run(conversation())
    print("largest difference of a log-prob, by version:", [f"{gap:.1e}" for gap in gaps])
    assert len(gaps) == VERSIONS
    assert max(gaps) < 1e-4


def test_episodes_of_a_killed_server_go_on_at_the_other(servers, policies):
    """Killed in the middle of a rollout, as a drained node kills it; nothing is lost."""
    engine = _engine((url for url, _ in servers), attempts=2)
    killed = servers[1][1]

    async def episode(seed):
        session = await engine.open([*PROMPT, 20 + seed % 50], Sampling(temperature=1.0, seed=seed))
        context = [*PROMPT, 20 + seed % 50]
        logprobs = [None] * len(context)
        for turn in range(4):
            if turn == 1 and seed == 0:
                os.killpg(killed.pid, signal.SIGKILL)
            action = await session.sample(max_tokens=12)
            session.observe(OBSERVED)
            context += [*action.token_ids, *OBSERVED]
            logprobs += [*action.logprobs, *[None] * len(OBSERVED)]
        session.close()
        return context, logprobs

    async def rollout():
        await engine.load_weights(policies[3], 3)
        assert len(engine.pool.usable) == 2
        async with engine.serving():
            return await asyncio.gather(*map(episode, range(32)))

    episodes = asyncio.run(rollout())
    answered = {server.url: server.answered for server in engine.pool.servers.values()}
    print("completions by server:", answered, "lost:", engine.pool.lost)
    assert engine.pool.lost == 1
    assert all(answered.values())
    assert sum(answered.values()) == 32 * 4, "no turn was answered twice"
    for context, logprobs in episodes:
        expected = _logprobs_of_transformers(policies[3], context)
        gaps = [abs(a - b) for a, b in zip(logprobs, expected, strict=True) if a is not None]
        assert max(gaps) < 1e-4
