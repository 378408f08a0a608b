"""Rows that begin with the same turns: forwarded once, and sampled as if each had read them."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.rollout.engines.engine import KindChoice, Sampling
from espalier.rollout.engines.lockstep import LockstepEngine
from tests.factories.causal_models import CASES
from tests.unit.rollout.play import NEVER, STOPS_OFTEN, engine_over, run_sessions, turns

PROMPT = list(range(50, 90))
OBSERVATIONS = ((60, 61, 62, 63), (70,), tuple(range(100, 135)))


def apart(episodes, **engine):
    """What each episode gives where no other is played."""
    return [run_sessions(engine_over(**engine), episode)[0] for episode in episodes]


def assert_same(found, expected):
    for (context, mask, logprobs), (alone, alone_mask, alone_logprobs) in zip(
        found, expected, strict=True
    ):
        assert (context, mask) == (alone, alone_mask)
        np.testing.assert_allclose(logprobs, alone_logprobs, atol=1e-5)


@pytest.mark.parametrize("name", ["fused lfm2", "gpt2 in pages", "mistral by its window"])
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_common_turns_are_forwarded_once_and_sampled_as_apart(name, temperature):
    episodes = [
        turns(PROMPT, seed=seed, temperature=temperature, observations=OBSERVATIONS)
        for seed in (1, 2, 2, 3)
    ]
    engine = engine_over(name)
    together = run_sessions(engine, *episodes)
    assert_same(together, apart(episodes, name=name))
    assert engine.counters.forwarded == len(distinct_positions(together))
    assert engine.counters.forwarded < engine.counters.unique


def distinct_positions(together):
    """The distinct beginnings of contexts, without a context's last token, which nobody reads."""
    contexts = [tuple(context) for context, _, _ in together]
    return {context[:end] for context in contexts for end in range(1, len(context))}


@pytest.mark.parametrize("name", ["fused lfm2", "gpt2 in pages", "mistral by its window"])
@pytest.mark.parametrize("rows", [2, 8])
def test_what_prompts_begin_with_is_forwarded_once(name, rows):
    def asked(beginning, number):
        prompt = [*beginning, 90 + number, 95]
        return turns(prompt, seed=number, temperature=1.0, observations=OBSERVATIONS)

    engine = engine_over(name, max_rows=rows)
    numbers = (0, 1, 1, 2, 3)
    together = run_sessions(engine, *(asked(PROMPT, number) for number in numbers))
    assert_same(together, apart([asked(PROMPT, number) for number in numbers], name=name))
    alone = sum(len(context) - 1 for context, _, _ in together)
    assert engine.counters.forwarded <= alone - 4 * len(PROMPT)
    if rows >= len(numbers):  # equal rows are played at one time
        assert engine.counters.forwarded == len(distinct_positions(together))

    # prompts of another kind take the place of the first ones
    other = PROMPT[::-1]
    mixed = [asked(beginning, number) for beginning in (PROMPT, other) for number in (4, 5)]
    again = run_sessions(engine, *mixed, asked([40], 6))
    assert_same(again, apart([*mixed, asked([40], 6)], name=name))


def test_short_beginnings_are_not_kept():
    episodes = [turns([*PROMPT[:20], 90 + n], seed=n, temperature=0.0) for n in range(2)]
    engine = engine_over()
    together = run_sessions(engine, *episodes)
    assert_same(together, apart(episodes))
    assert engine.counters.forwarded == len(distinct_positions(together)) + 20


def test_an_engine_may_share_prompts_alone():
    build = CASES["fused lfm2"][1]
    engine = LockstepEngine(
        build(), CASES["fused lfm2"][0](build()), NEVER, max_rows=4, shares_turns=False
    )
    episodes = [turns(PROMPT, seed=0, temperature=0.0) for _ in range(3)]
    assert_same(run_sessions(engine, *episodes), apart(episodes, stop_rule=NEVER))
    assert engine.counters.forwarded == len(PROMPT) + 3 * 11


def test_a_row_that_waits_keeps_the_shared_context():
    async def first(engine):
        return await turns(PROMPT, temperature=0.0, observations=OBSERVATIONS)(engine)

    async def later(engine):
        session = await engine.open(PROMPT, Sampling(temperature=0.0, seed=0))
        before = await session.sample(max_tokens=12)
        await others_are_done.wait()
        session.observe(OBSERVATIONS[0])
        after = await session.sample(max_tokens=12)
        session.close()
        return [*PROMPT, *before.token_ids, *OBSERVATIONS[0], *after.token_ids]

    async def both(engine):
        waiting = asyncio.create_task(later(engine))
        context, _, _ = await first(engine)
        others_are_done.set()
        return context, await waiting

    others_are_done = asyncio.Event()
    ((context, waited),) = run_sessions(engine_over(), both)
    assert context[: len(waited)] == waited


def test_rows_of_one_context_are_drawn_by_their_own_parameters():
    choice = KindChoice(epsilon=0.9, after_id=60, kind_ids=(25, 26))
    episodes = [
        turns(PROMPT, temperature=0.0),
        turns(PROMPT, temperature=0.7),
        turns(PROMPT, top_k=2),
        turns(PROMPT, top_p=0.5),
        turns(PROMPT, kind_choice=choice),
        turns(PROMPT, temperature=0.0),
    ]
    assert_same(run_sessions(engine_over(), *episodes), apart(episodes))


def test_groups_beyond_the_bound_of_a_step_sit_it_out(monkeypatch):
    monkeypatch.setattr("espalier.rollout.engines.contexts._MAX_STEP_TOKENS", 8)
    episodes = [
        turns(PROMPT[:end], seed=end // 2, temperature=0.3, observations=OBSERVATIONS)
        for end in (4, 4, 6, 7)
    ]
    together = run_sessions(engine_over(), *episodes)
    monkeypatch.undo()
    assert_same(together, apart(episodes))


def test_a_server_forgets_the_parameters_of_closed_sessions():
    episodes = [turns([30, 31], temperature=0.1 + number / 50) for number in range(40)]
    together = run_sessions(engine_over(max_rows=3), *episodes)
    assert_same(together, apart(episodes, max_rows=1))


def test_every_context_is_released_with_its_last_row():
    engine = engine_over("fused lfm2", max_rows=3)
    seen = []

    async def all_of_them(engine):
        episodes = [
            turns(PROMPT, seed=seed, temperature=0.5, observations=OBSERVATIONS)(engine)
            for seed in range(9)
        ]
        await asyncio.gather(*episodes)
        seen.append(engine._decoder._table.live)

    run_sessions(engine, all_of_them)
    assert seen == [0]


SESSIONS = st.lists(
    st.tuples(
        st.integers(0, 2),  # seed
        st.sampled_from([0.0, 0.3, 1.0]),
        st.lists(st.sampled_from(OBSERVATIONS[:2]), max_size=3),
        st.integers(0, 5),  # turns of the loop before it begins
        st.integers(1, 6),  # most tokens of an action
    ),
    min_size=2,
    max_size=6,
)


@settings(max_examples=12)
@given(SESSIONS, st.integers(1, 6))
def test_any_mixture_of_sessions_is_sampled_as_apart(drawn, max_rows):
    def begun_later(episode, pauses):
        async def play(engine):
            for _ in range(pauses):
                await asyncio.sleep(0)
            return await episode(engine)

        return play

    episodes, later = [], []
    for seed, temperature, observations, pauses, most in drawn:
        episodes.append(
            turns(
                PROMPT[:5],
                seed=seed,
                temperature=temperature,
                observations=observations,
                max_tokens=most,
            )
        )
        later.append(begun_later(episodes[-1], pauses))
    engine = engine_over(stop_rule=STOPS_OFTEN, max_rows=max_rows)
    assert_same(run_sessions(engine, *later), apart(episodes))
