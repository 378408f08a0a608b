"""Every term stays inside the range that it states, whatever the episode was."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.algorithms.shaping import CallFacts, EpisodeFacts, TermContext, TermRule

RULES = get_args(get_args(TermRule)[0])
CALLS = st.builds(
    CallFacts, st.sampled_from("ab"), st.sampled_from("xy"), st.booleans(), st.booleans()
)


@st.composite
def groups(draw):
    context = TermContext(100, draw(st.sampled_from([0.0, -1.0])), 1.0)
    members = []
    for _ in range(draw(st.integers(1, 4))):
        turns = draw(st.lists(st.lists(CALLS, max_size=4).map(tuple), min_size=1, max_size=12))
        tokens = draw(st.lists(st.integers(0, 3), max_size=120))
        right = draw(st.booleans())
        members.append(
            EpisodeFacts(
                outcome=context.outcome_high if right else context.outcome_low,
                is_right=right,
                answer=draw(st.sampled_from([None, "a", "b"])),
                turns=tuple(turns),
                thoughts=tuple(draw(st.booleans()) for _ in turns),
                last_text=draw(st.sampled_from(["", r"\boxed{1}"])),
                is_malformed=draw(st.booleans()),
                is_truncated=draw(st.booleans()),
                total_tokens=draw(st.integers(0, 500)),
                action_token_ids=tuple(tokens),
                action_logprobs=tuple(draw(st.floats(-30, 0)) for _ in tokens[:5]),
            )
        )
    return members, context


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@settings(max_examples=40, deadline=None)
@given(played=groups())
def test_no_episode_is_paid_outside_the_stated_range(rule, played):
    group, context = played
    term = rule()
    low, high = term.span(context)
    for reward in term.group_rewards(group, context):
        rewarded = reward.once if reward.once is not None else sum(reward.by_turn)
        assert low - 1e-9 <= rewarded <= high + 1e-9
