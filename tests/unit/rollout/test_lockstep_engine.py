import asyncio
import copy

import pytest
import torch

from espalier.policy.loading import Policy, save_policy
from espalier.records import PolicyError
from espalier.rollout.engines.decoder import RowwiseDecoder
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.engines.fused_decoder import FusedDecoder
from espalier.rollout.engines.lockstep import LockstepEngine
from tests.factories.causal_models import CASES, lfm2_with_shared_heads_and_biases
from tests.factories.tiny import tiny_policy, tiny_tokenizer
from tests.unit.rollout import play

PROMPTS = ([30, 31, 32], [40] * 5, list(range(50, 90)))
OBSERVATIONS = ((60, 61, 62, 63), (70,), tuple(range(100, 140)))
# more episodes than rows, prompts that are shared, and turns of different lengths
EPISODES = [
    play.turns(PROMPTS[number % 3], seed=number, observations=OBSERVATIONS[: number % 4])
    for number in range(12)
]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_logprobs_equal_plain_transformers(name):
    for context, mask, logprobs in play.run_sessions(play.engine_over(name, max_rows=5), *EPISODES):
        expected = play.plain_logprobs(CASES[name][1](), context, mask)
        torch.testing.assert_close(torch.tensor(logprobs), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 2.0])
def test_logprobs_are_those_of_the_temperature_that_sampled(temperature):
    episode = play.turns(PROMPTS[0], temperature=temperature)
    ((context, mask, logprobs),) = play.run_sessions(play.engine_over(), episode)
    model = lfm2_with_shared_heads_and_biases()
    # a greedy token has its log-prob at temperature 1
    expected = play.plain_logprobs(model, context, mask, temperature=temperature or 1.0)
    torch.testing.assert_close(torch.tensor(logprobs), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_session_is_independent_of_other_sessions():
    together = play.run_sessions(play.engine_over(max_rows=4), *EPISODES)
    backwards = play.run_sessions(play.engine_over(max_rows=3), *reversed(EPISODES))[::-1]
    alone = [play.run_sessions(play.engine_over(), episode)[0] for episode in EPISODES]
    assert [context for context, _, _ in together] == [context for context, _, _ in alone]
    assert [context for context, _, _ in backwards] == [context for context, _, _ in alone]


def test_each_row_is_sampled_by_its_own_parameters():
    engine = play.engine_over(stop_rule=play.NEVER)
    greedy = play.turns(PROMPTS[0], temperature=0.0)
    one_of_one = play.turns(PROMPTS[0], top_k=1)
    tiny_mass = play.turns(PROMPTS[0], top_p=1e-6)
    hot = play.turns(PROMPTS[0], temperature=5.0)
    (argmax, _, _), (first, _, certain), (second, _, _), (other, _, _) = play.run_sessions(
        engine, greedy, one_of_one, tiny_mass, hot
    )
    assert argmax == first == second
    assert argmax != other
    assert certain == [0.0] * len(certain)


def test_an_action_ends_at_its_stop_token_or_limit():
    async def sample(engine):
        session = await engine.open(PROMPTS[0], Sampling(temperature=1.0, seed=3))
        actions = [await session.sample(max_tokens=4) for _ in range(10)]
        session.close()
        return actions

    (actions,) = play.run_sessions(play.engine_over(), sample)
    assert {action.stopped for action in actions} == {True, False}
    for action in actions:
        *before, last = action.token_ids
        assert not play.STOPS_OFTEN.stop_ids.intersection(before)
        assert action.stopped == (last in play.STOPS_OFTEN.stop_ids)
        assert action.stopped or len(action.token_ids) == 4


def test_a_session_waiting_for_a_tool_delays_no_other():
    async def slow(engine):
        session = await engine.open(PROMPTS[0], Sampling(temperature=1.0, seed=0))
        await session.sample(max_tokens=2)
        await asyncio.wait_for(others_are_done.wait(), timeout=60)
        session.observe([60])
        await session.sample(max_tokens=2)
        session.close()

    async def quick(engine):
        await play.turns(PROMPTS[1], observations=OBSERVATIONS)(engine)
        others_are_done.set()

    others_are_done = asyncio.Event()
    play.run_sessions(play.engine_over(max_rows=2), slow, quick)


def test_a_session_that_is_given_up_frees_its_slot():
    async def impatient(engine):
        session = await engine.open(PROMPTS[0], Sampling(temperature=1.0, seed=0))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.sample(max_tokens=10**6), timeout=0.05)
        waiting = asyncio.create_task(engine.open(PROMPTS[1], Sampling(temperature=1.0, seed=0)))
        await asyncio.sleep(0)
        session.close()
        session.close()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    _, (_, mask, _) = play.run_sessions(
        play.engine_over(stop_rule=play.NEVER, max_rows=1), impatient, play.turns(PROMPTS[1])
    )
    assert sum(mask) == 12


def test_a_failed_step_raises_in_all_sessions():
    class Broken(RowwiseDecoder):
        def logits(self, hidden_NH):
            raise RuntimeError("out of memory")

    model = lfm2_with_shared_heads_and_biases()
    engine = LockstepEngine(model, Broken(model), play.NEVER, max_rows=1)
    with pytest.raises(RuntimeError, match="out of memory"):
        play.run_sessions(engine, play.turns(PROMPTS[0]), play.turns(PROMPTS[1]))
    assert str(engine.failure) == "out of memory"


def test_one_engine_serves_one_event_loop_after_the_other():
    engine = play.engine_over()
    assert play.run_sessions(engine, *EPISODES[:3]) == play.run_sessions(engine, *EPISODES[:3])


def test_loaded_weights_sample_from_the_next_session_on(tmp_path):
    policy = tiny_policy()
    engine = LockstepEngine(policy.model, RowwiseDecoder(policy.model), play.NEVER, max_rows=2)
    save_policy(Policy(tiny_policy(seed=1).model, tiny_tokenizer()), tmp_path)
    episode = play.turns(PROMPTS[0], temperature=0.0)

    async def load(engine):
        session = await engine.open(PROMPTS[0], Sampling(temperature=0.0, seed=0))
        loading = asyncio.create_task(engine.load_weights(tmp_path, version=5))
        while_loading = asyncio.create_task(episode(engine))
        before = await session.sample(max_tokens=12)
        session.close()
        await loading
        return list(before.token_ids), await while_loading

    ((before, (after, _, _)),) = play.run_sessions(engine, load)
    old, new = (
        LockstepEngine(m, RowwiseDecoder(m), play.NEVER, max_rows=1)
        for m in (tiny_policy().model, tiny_policy(seed=1).model)
    )
    assert play.run_sessions(old, episode)[0][0] == [*PROMPTS[0], *before]
    assert play.run_sessions(new, episode)[0][0] == after
    assert engine.policy_version == 5


INSTRUCTED = list(range(50, 90))
"""The common beginning of prompts, long enough to be kept."""


def asked(number):
    return play.turns(
        [*INSTRUCTED, 90 + number], seed=number, observations=OBSERVATIONS[:1], max_tokens=4
    )


def move(model, seed):
    """Change the weights in place, as an optimizer does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(noise * 0.3 * weight.abs().mean())


def largest_gap(found, model):
    """In nats, to one forward pass of the whole context without any cache."""
    return max(
        float((torch.tensor(logprobs) - play.plain_logprobs(model, context, mask)).abs().max())
        for context, mask, logprobs in found
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fused lfm2", "fused qwen3", "gpt2 in pages", "mistral by its window"]
)
def test_no_version_reads_keys_of_the_one_before(name):
    """Keys of former weights made a mismatch that grew with every version (NeMo-RL#4018)."""
    decoder_class, build = CASES[name]
    model = copy.deepcopy(build())
    engine = LockstepEngine(model, decoder_class(model), play.NEVER, max_rows=2)
    gaps = []
    for version in range(20):
        gaps.append(largest_gap(play.run_sessions(engine, *map(asked, range(3))), model))
        move(model, version)
    assert max(gaps) <= 1e-4, gaps


@pytest.mark.parametrize("decoder_class", [FusedDecoder, RowwiseDecoder])
def test_an_episode_keeps_its_weights_and_later_ones_none(tmp_path, decoder_class):
    """Weights that change between two turns, with a beginning in the cache (SkyRL#2246)."""
    policy, newer = tiny_policy(), tiny_policy(seed=1)
    move(newer.model, 0)
    save_policy(Policy(newer.model, tiny_tokenizer()), tmp_path)
    engine = LockstepEngine(policy.model, decoder_class(policy.model), play.NEVER, max_rows=2)
    old = copy.deepcopy(policy.model)

    async def changed_between_turns(engine):
        loading = None

        async def begin_loading():
            nonlocal loading
            loading = asyncio.create_task(engine.load_weights(tmp_path, version=5))

        async def episode(number):
            prompt = [*INSTRUCTED, 90 + number]
            session = await engine.open(prompt, Sampling(temperature=1.0, seed=number))
            first = await session.sample(max_tokens=6)
            if loading is None:
                await begin_loading()
            await asyncio.sleep(0)
            session.observe([60, 61])
            second = await session.sample(max_tokens=6)
            session.close()
            context = [*prompt, *first.token_ids, 60, 61, *second.token_ids]
            mask = [0] * len(prompt) + [1] * 6 + [0, 0] + [1] * 6
            return context, mask, [*first.logprobs, *second.logprobs]

        before = await asyncio.gather(episode(0), episode(1))
        await loading
        return before, [await asked(number)(engine) for number in range(2)]

    ((before, after),) = play.run_sessions(engine, changed_between_turns)
    assert largest_gap(before, old) <= 1e-4
    assert largest_gap(after, newer.model) <= 1e-4
    assert largest_gap(after, old) > 0.1


def test_weights_of_another_shape_are_refused(tmp_path):
    save_policy(tiny_policy(), tmp_path)
    model = lfm2_with_shared_heads_and_biases()
    engine = LockstepEngine(model, RowwiseDecoder(model), play.NEVER, max_rows=1)
    with pytest.raises(PolicyError, match=tmp_path.name):
        asyncio.run(engine.load_weights(tmp_path, version=1))


@pytest.mark.parametrize("turns_of_the_loop", range(1, 9))
def test_a_cancelled_sample_affects_no_other_session(turns_of_the_loop):
    async def leave(engine):
        session = await engine.open(PROMPTS[0], Sampling(temperature=1.0, seed=0))
        try:
            await session.sample(max_tokens=2)
        finally:
            session.close()

    async def cancel_one(engine):
        left = asyncio.create_task(leave(engine))
        stayed = asyncio.create_task(play.turns(PROMPTS[1])(engine))
        for _ in range(turns_of_the_loop):
            await asyncio.sleep(0)
        left.cancel()
        return await stayed

    (stayed,) = play.run_sessions(play.engine_over(stop_rule=play.NEVER), cancel_one)
    (alone,) = play.run_sessions(play.engine_over(stop_rule=play.NEVER), play.turns(PROMPTS[1]))
    assert stayed[0] == alone[0]


def test_an_observation_before_the_first_action_is_read():
    async def observe_first(engine):
        session = await engine.open(PROMPTS[0], Sampling(temperature=0.0, seed=0))
        session.observe([60, 61])
        session.observe([62])
        return (await session.sample(max_tokens=5)).token_ids

    (observed,) = play.run_sessions(play.engine_over(), observe_first)
    whole = play.turns([*PROMPTS[0], 60, 61, 62], temperature=0.0, max_tokens=5)
    ((context, _, _),) = play.run_sessions(play.engine_over(), whole)
    assert list(observed) == context[6:]
