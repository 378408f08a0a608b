"""Drafts from earlier sessions: whatever they say, sessions are sampled as without them."""

import asyncio
import random
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.rollout.engines import contexts, earlier_rollouts, speculation
from espalier.rollout.engines.earlier_rollouts import (
    EarlierContext,
    EarlierRollouts,
    FollowedContext,
    as_bytes,
)
from espalier.rollout.engines.engine import KindChoice, Sampling
from espalier.rollout.engines.fused_decoder import FusedDecoder
from espalier.rollout.engines.lockstep import LockstepEngine
from espalier.rollout.engines.speculation import Acceptance
from tests.factories.causal_models import VOCABULARY, qwen3
from tests.unit.rollout.play import NEVER, STOPS_OFTEN, StopsAt, engine_over, run_sessions, turns

PROMPTS = (list(range(50, 90)), [40] * 5, [30, 31, 32], list(range(100, 131)))
OBSERVATIONS = ((60, 61, 62, 63), (70,), tuple(range(100, 135)))


def episodes_of(*, seed=0, temperature=0.0, prompts=PROMPTS, **options):
    return [
        turns(
            prompt,
            seed=seed + number,
            temperature=temperature,
            observations=OBSERVATIONS[: number % 4],
            **options,
        )
        for number, prompt in enumerate(prompts, 1)
    ]


def assert_same(found, expected):
    for (context, mask, logprobs), (plain, plain_mask, plain_logprobs) in zip(
        found, expected, strict=True
    ):
        assert (context, mask) == (plain, plain_mask)
        np.testing.assert_allclose(logprobs, plain_logprobs, atol=1e-5)


def assert_lossless(*rounds, max_rows=8, **engine):
    """Play rounds of sessions one after the other, with drafts and without them.

    Sessions that wait for a row open earlier or later where others draft. So they meet others to
    share turns with, and what is forwarded can be compared only where none waits.

    Returns:
        The counters of the engine that drafts.
    """
    drafting, plain = (
        engine_over(max_rows=max_rows, speculation=speculation, **engine)
        for speculation in ("all", "off")
    )
    for episodes in rounds:
        assert_same(run_sessions(drafting, *episodes), run_sessions(plain, *episodes))
    counters = drafting.counters
    assert counters.sampled == plain.counters.sampled
    assert counters.unique == plain.counters.unique
    rejected = counters.drafted - counters.accepted
    if all(len(episodes) <= max_rows for episodes in rounds):
        assert counters.forwarded == plain.counters.forwarded + rejected
    return counters


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["fused lfm2", "gpt2 in pages", "qwen3 row by row"])
def test_a_session_is_drafted_from_one_with_its_prompt(name, temperature):
    episodes = episodes_of(temperature=temperature)
    counters = assert_lossless(episodes, episodes, name=name)
    actions = 4 + 1 + 2 + 3  # the first token of an action that is drafted whole is drawn, too
    assert counters.drafted == counters.accepted == counters.sampled / 2 - actions


def test_draws_that_differ_from_the_draft_are_kept():
    rounds = [episodes_of(seed=seed, temperature=0.2) for seed in (0, 10, 20, 30)]
    counters = assert_lossless(*rounds)
    assert 0 < counters.accepted < counters.drafted


def test_the_parameters_of_a_session_hold_behind_a_draft():
    choice = KindChoice(epsilon=0.9, after_id=60, kind_ids=(25, 26))
    rounds = [
        [
            turns(PROMPTS[0], seed=seed, top_p=0.5),
            turns(PROMPTS[1], seed=seed, top_k=3),
            turns(PROMPTS[2], seed=seed, kind_choice=choice),
            turns(PROMPTS[3], seed=seed, temperature=0.3),
        ]
        for seed in (1, 2, 1, 2)
    ]
    assert assert_lossless(*rounds, stop_rule=NEVER).accepted


def test_a_kind_is_drawn_behind_a_drafted_tag(monkeypatch):
    after = 40
    monkeypatch.setattr(FollowedContext, "draft", lambda self, begun: [after, after, after, after])
    monkeypatch.setattr(speculation, "_NEVER", 0)
    choice = KindChoice(epsilon=0.9, after_id=after, kind_ids=(after, 26))
    episodes = [turns([*PROMPTS[1], 41], kind_choice=choice, seed=seed) for seed in range(8)]
    counters = assert_lossless(*([one] for one in episodes), stop_rule=NEVER)
    assert counters.drafted


def test_an_action_ends_at_its_limit_within_a_draft():
    rounds = [episodes_of(max_tokens=most) for most in (12, 5, 1, 2, 30)]
    assert assert_lossless(*rounds, stop_rule=NEVER).accepted


class EndsAfter(StopsAt):
    """Ends an action by its text, once it has so many tokens."""

    length = 12

    def ends_action(self, action_ids):
        return len(action_ids) >= self.length


def test_a_stop_text_ends_an_action_within_a_draft():
    drafting, plain = (
        engine_over(stop_rule=EndsAfter(stop_texts=("</answer>",)), speculation=speculation)
        for speculation in ("all", "off")
    )
    for length in (12, 3, 7):
        EndsAfter.length = length
        found = run_sessions(drafting, *episodes_of())
        assert_same(found, run_sessions(plain, *episodes_of()))
        assert sum(found[0][1]) == 2 * length
    assert drafting.counters.accepted


def test_rows_that_part_from_a_shared_context_may_draft():
    same = (PROMPTS[0],) * 5
    rounds = [episodes_of(seed=seed, temperature=0.7, prompts=same) for seed in (0, 10, 20)]
    assert assert_lossless(*rounds).drafted


@pytest.mark.parametrize("max_rows", [1, 2])
def test_a_prompt_that_others_wait_for_gets_no_draft(max_rows):
    prompts = (PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[0])
    rounds = [episodes_of(seed=seed, temperature=0.7, prompts=prompts) for seed in (0, 10, 20)]
    assert assert_lossless(*rounds, max_rows=max_rows).drafted


def test_weights_may_change_between_the_sessions():
    model = qwen3.__wrapped__()
    drafting, plain = (
        LockstepEngine(model, FusedDecoder(model), NEVER, max_rows=4, speculation=speculation)
        for speculation in ("all", "off")
    )
    for _ in range(3):
        assert_same(run_sessions(drafting, *episodes_of()), run_sessions(plain, *episodes_of()))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.02)
    assert 0 < drafting.counters.accepted < drafting.counters.drafted


def test_a_decoder_that_cannot_take_tokens_back_gets_no_drafts():
    counters = assert_lossless(episodes_of(), episodes_of(), name="mistral by its window")
    assert counters.drafted == 0


def test_speculation_may_be_for_greedy_sessions_alone():
    engine = engine_over(speculation="greedy")
    drafted = []
    for temperature in (1.0, 1.0, 0.0, 0.0):
        run_sessions(engine, *episodes_of(temperature=temperature))
        drafted.append(engine.counters.drafted)
    assert drafted[:3] == [0, 0, 0]
    assert drafted[3] > 0


def test_drafted_rows_beyond_a_step_s_bound_wait(monkeypatch):
    monkeypatch.setattr(contexts, "_MAX_DRAFTED_STEP_TOKENS", 20)
    assert assert_lossless(episodes_of(), episodes_of()).accepted


def test_logits_of_drafts_are_bounded(monkeypatch):
    free = assert_lossless(episodes_of(), episodes_of())
    monkeypatch.setattr(speculation, "_MAX_LOGITS", 5 * VOCABULARY)
    counters = assert_lossless(episodes_of(), episodes_of())
    assert 0 < counters.drafted < free.drafted


def test_a_session_that_is_given_up_leaves_its_draft_behind():
    async def leave(engine):
        session = await engine.open(PROMPTS[0], Sampling(temperature=0.0, seed=0))
        sampling = asyncio.create_task(session.sample(max_tokens=12))
        await asyncio.sleep(0)
        sampling.cancel()
        session.close()

    engine = engine_over(max_rows=1, speculation="all")
    expected = run_sessions(engine, episodes_of()[0])
    _, again = run_sessions(engine, leave, episodes_of()[0])
    assert_same([again], expected)


DRAFTS = st.lists(
    st.lists(st.integers(0, VOCABULARY - 1), max_size=12) | st.integers(0, 5), max_size=30
)


@settings(max_examples=12)
@given(
    DRAFTS,
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([0.0, 0.7])),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 5),
)
def test_no_draft_changes_what_is_sampled(drafts, sessions, max_rows):
    """Any tokens, or an earlier session's with one of them replaced."""
    honest = FollowedContext.draft
    number = count()

    def hostile(self, begun):
        drawn = drafts[next(number) % len(drafts)] if drafts else []
        if isinstance(drawn, list):
            return drawn
        draft = list(honest(self, begun))
        return [*draft[:drawn], 33, *draft[drawn + 1 :]] if drawn else draft

    episodes = [
        turns(PROMPTS[prompt], seed=seed, temperature=temperature, observations=OBSERVATIONS[:2])
        for prompt, seed, temperature in sessions
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FollowedContext, "draft", hostile)
        patched.setattr(Acceptance, "most", lambda self: 12)
        assert_lossless(episodes, episodes, max_rows=max_rows, stop_rule=STOPS_OFTEN)


def ended(*parts):
    """A context of a prompt, and then actions and observations by turns."""
    context = FollowedContext.begin(parts[0], EarlierRollouts())
    for place, part in enumerate(parts[1:]):
        (context.observe if place % 2 else context.act)(part)
    return context.prompt, context.ended()


PROMPT = (1, 2, 3)


def followed(*contexts):
    rollouts = EarlierRollouts()
    for parts in contexts:
        rollouts.add(*ended(PROMPT, *parts))
    return FollowedContext.begin(PROMPT, rollouts)


def test_a_context_is_followed_over_its_actions_and_observations():
    context = followed(((10, 11, 12), (20, 21), (13, 14)))
    assert list(context.draft(())) == [10, 11, 12]
    assert list(context.draft((10,))) == [11, 12]
    context.act((10, 11, 12))
    context.observe((20, 21))
    assert list(context.draft(())) == [13, 14]


def test_last_tokens_are_looked_up_where_a_context_is_left():
    long = tuple(range(30, 50))
    context = followed(((10, 11, 12), (20, 21), long), ((15, 16), (22,), (17,)))
    assert list(context.draft(())) == [15, 16]
    context.act((10, 11, 12))
    context.observe((20, 21))
    assert list(context.draft(())) == list(long)
    assert list(context.draft((99, *long[3:9]))) == list(long[9:])
    assert list(context.draft((99, 98, 97))) == []


def test_a_short_context_is_looked_up_whole():
    context = followed(((10,), (20,), (13, 14)))
    context.followed = None
    assert list(context.draft((10,))) == []
    assert list(context.draft(())) == [10]


def test_tokens_are_not_found_across_the_borders_of_others():
    shifted = 1 << 8  # its bytes are those of 1, moved by one
    _, context = ended((5,), (shifted, shifted, 7, 1, 9))
    assert context.place_after(as_bytes((1,))) == 5
    assert context.place_after(as_bytes((2,))) is None
    assert list(context.action_from(0)) == []


def test_memory_is_bounded_by_prompt_and_in_all(monkeypatch):
    monkeypatch.setattr(earlier_rollouts, "_MAX_TOKENS", 100)
    rollouts = EarlierRollouts()
    for number in range(10):
        rollouts.add(*ended(PROMPT, (number, number)))
    assert [len(context) for context in rollouts.of(as_bytes(PROMPT))] == [5] * 4
    rollouts.add(*ended(PROMPT, (8, 8)))
    first = rollouts.of(as_bytes(PROMPT))[0]
    assert list(first.action_from(3)) == [8, 8]
    for number in range(100, 140):
        rollouts.add(*ended((number,), (1, 2, 3)))
    assert rollouts.of(as_bytes(PROMPT)) == ()
    kept = [number for number in range(100, 140) if rollouts.of(as_bytes((number,)))]
    assert kept == list(range(115, 140))


def test_an_equal_hash_of_another_prompt_drafts_nothing():
    rollouts = EarlierRollouts()
    _, context = ended((7, 8), (10, 11))
    rollouts.add(as_bytes(PROMPT), context)
    assert FollowedContext.begin(PROMPT, rollouts).draft(()) == ()


def test_the_length_of_drafts_follows_what_is_kept():
    rng = random.Random(0)
    lengths = {}
    for chance in (0.999, 0.9, 0.7, 0.2):
        acceptance = Acceptance()
        asked = []
        for _ in range(1000):
            most = acceptance.most()
            asked.append(most)
            kept = next((n for n in range(most) if rng.random() > chance), most)
            if most:
                acceptance.learn(most, kept)
        lengths[chance] = sum(asked[500:]) / 500
    assert lengths[0.999] == 64
    assert 4 < lengths[0.9] < 12
    assert 1 < lengths[0.7] < 4
    assert lengths[0.2] < 0.5


def test_an_earlier_context_knows_its_actions():
    _, context = ended(PROMPT, (10, 11), (20, 21), (12,))
    assert context == EarlierContext(as_bytes((*PROMPT, 10, 11, 20, 21, 12)), (3, 7), (5, 8))
    assert [list(context.action_from(place)) for place in range(9)] == [
        [],
        [],
        [],
        [10, 11],
        [11],
        [],
        [],
        [12],
        [],
    ]
