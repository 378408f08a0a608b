"""Rows that begin with the same turns: forwarded once, and sampled as if each had read them."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.rollout.play import STOPS_OFTEN, assert_same, engine_over, run_sessions, turns

PROMPT = list(range(50, 90))
OBSERVATIONS = ((60, 61, 62, 63), (70,), tuple(range(100, 135)))


def apart(episodes, **engine):
    """What each episode gives where no other is played."""
    return [run_sessions(engine_over(**engine), episode)[0] for episode in episodes]


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


def test_a_server_forgets_the_parameters_of_closed_sessions():
    episodes = [turns([30, 31], temperature=0.1 + number / 50) for number in range(40)]
    together = run_sessions(engine_over(max_rows=3), *episodes)
    assert_same(together, apart(episodes, max_rows=1))
