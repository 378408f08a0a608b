"""Drafts from earlier sessions: whatever they say, sessions are sampled as without them."""

from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.rollout.engines import earlier_rollouts
from espalier.rollout.engines.earlier_rollouts import EarlierRollouts, FollowedContext, as_bytes
from espalier.rollout.engines.engine import KindChoice
from espalier.rollout.engines.fused_decoder import FusedDecoder
from espalier.rollout.engines.lockstep import LockstepEngine
from espalier.rollout.engines.speculation import Acceptance
from tests.factories.causal_models import VOCABULARY, qwen3
from tests.unit.rollout import play

PROMPTS = (list(range(50, 90)), [40] * 5, [30, 31, 32], list(range(100, 131)))
OBSERVATIONS = ((60, 61, 62, 63), (70,), tuple(range(100, 135)))


def episodes_of(*, seed=0, temperature=0.0, **options):
    return [
        play.turns(
            prompt,
            seed=seed + number,
            temperature=temperature,
            observations=OBSERVATIONS[: number % 4],
            **options,
        )
        for number, prompt in enumerate(PROMPTS, 1)
    ]


def assert_lossless(*rounds, max_rows=8, **engine):
    """Play rounds of sessions one after the other, with drafts and without them.

    Sessions that wait for a row open earlier or later where others draft. So they meet others to
    share turns with, and what is forwarded can be compared only where none waits.

    Returns:
        The counters of the engine that drafts.
    """
    drafting, plain = (
        play.engine_over(max_rows=max_rows, speculation=speculation, **engine)
        for speculation in ("all", "off")
    )
    for episodes in rounds:
        play.assert_same(
            play.run_sessions(drafting, *episodes), play.run_sessions(plain, *episodes)
        )
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


def test_a_decoder_that_cannot_take_tokens_back_gets_no_drafts():
    counters = assert_lossless(episodes_of(), episodes_of(), name="mistral by its window")
    assert counters.drafted == 0


def test_draws_that_differ_from_the_draft_are_kept():
    rounds = [episodes_of(seed=seed, temperature=0.2) for seed in (0, 10, 20, 30)]
    counters = assert_lossless(*rounds)
    assert 0 < counters.accepted < counters.drafted


def test_an_action_ends_at_its_limit_within_a_draft():
    rounds = [episodes_of(max_tokens=most) for most in (12, 5, 1, 2, 30)]
    assert assert_lossless(*rounds, stop_rule=play.NEVER).accepted


def test_the_parameters_of_a_session_hold_behind_a_draft():
    choice = KindChoice(epsilon=0.9, after_id=60, kind_ids=(25, 26))
    rounds = [
        [
            play.turns(PROMPTS[0], seed=seed, top_p=0.5),
            play.turns(PROMPTS[1], seed=seed, top_k=3),
            play.turns(PROMPTS[2], seed=seed, kind_choice=choice),
            play.turns(PROMPTS[3], seed=seed, temperature=0.3),
        ]
        for seed in (1, 2, 1, 2)
    ]
    assert assert_lossless(*rounds, stop_rule=play.NEVER).accepted


def test_a_stop_text_ends_an_action_within_a_draft():
    class EndsAfter(play.StopsAt):
        length = 12

        def ends_action(self, action_ids):
            return len(action_ids) >= self.length

    drafting, plain = (
        play.engine_over(stop_rule=EndsAfter(stop_texts=("</answer>",)), speculation=speculation)
        for speculation in ("all", "off")
    )
    for length in (12, 3, 7):
        EndsAfter.length = length
        found = play.run_sessions(drafting, *episodes_of())
        play.assert_same(found, play.run_sessions(plain, *episodes_of()))
        assert sum(found[0][1]) == 2 * length
    assert drafting.counters.accepted


def test_weights_may_change_between_the_sessions():
    model = qwen3.__wrapped__()
    drafting, plain = (
        LockstepEngine(model, FusedDecoder(model), play.NEVER, max_rows=4, speculation=speculation)
        for speculation in ("all", "off")
    )
    for _ in range(3):
        play.assert_same(
            play.run_sessions(drafting, *episodes_of()), play.run_sessions(plain, *episodes_of())
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.02)
    assert 0 < drafting.counters.accepted < drafting.counters.drafted


def test_speculation_may_be_for_greedy_sessions_alone():
    engine = play.engine_over(speculation="greedy")
    drafted = []
    for temperature in (1.0, 1.0, 0.0, 0.0):
        play.run_sessions(engine, *episodes_of(temperature=temperature))
        drafted.append(engine.counters.drafted)
    assert drafted[:3] == [0, 0, 0]
    assert drafted[3] > 0


DRAFTS = st.lists(
    st.lists(st.integers(0, VOCABULARY - 1), max_size=12) | st.integers(0, 5), max_size=30
)
SESSIONS = st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([0.0, 0.7]))


@settings(max_examples=12)
@given(DRAFTS, st.lists(SESSIONS, min_size=1, max_size=5), st.integers(1, 5))
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
        play.turns(
            PROMPTS[prompt], seed=seed, temperature=temperature, observations=OBSERVATIONS[:2]
        )
        for prompt, seed, temperature in sessions
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FollowedContext, "draft", hostile)
        patched.setattr(Acceptance, "most", lambda self: 12)
        assert_lossless(episodes, episodes, max_rows=max_rows, stop_rule=play.STOPS_OFTEN)


def test_memory_is_bounded_by_prompt_and_in_all(monkeypatch):
    def add(prompt, action):
        context = FollowedContext.begin(prompt, EarlierRollouts())
        context.act(action)
        rollouts.add(context.prompt, context.ended())

    monkeypatch.setattr(earlier_rollouts, "_MAX_TOKENS", 100)
    rollouts, first = EarlierRollouts(), (1, 2, 3)
    for number in (*range(10), 8):
        add(first, (number, number))
    assert [len(context) for context in rollouts.of(as_bytes(first))] == [5] * 4
    assert list(rollouts.of(as_bytes(first))[0].action_from(3)) == [8, 8], "the newest is first"
    for number in range(100, 140):
        add((number,), (1, 2, 3))
    assert rollouts.of(as_bytes(first)) == ()
    kept = [number for number in range(100, 140) if rollouts.of(as_bytes((number,)))]
    assert kept == list(range(115, 140))
