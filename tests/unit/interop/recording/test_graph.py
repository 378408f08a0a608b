"""How calls are joined, and that what they become trains each sampled token once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.records import Message, ToolCall
from espalier.records.trajectory import FinishReason
from espalier_interop.recording.graph import (
    AttemptOutcome,
    PrefixGraph,
    RecordedCall,
    fingerprint,
    id_bytes,
    trajectory_of,
)

WON = AttemptOutcome({"outcome": 1.0}, "x", FinishReason.ANSWERED)


def call(prompt_ids, answer_ids, *, version=0):
    return RecordedCall(
        prompt_ids=tuple(prompt_ids),
        answer_ids=tuple(answer_ids),
        logprobs=tuple(-float(i) for i in answer_ids),
        stopped=True,
        is_action=True,
        policy_version=version,
        asked=(Message(role="user", content="q"),),
        said=Message(role="assistant", content="a"),
    )


def graph_of(*calls):
    graph = PrefixGraph()
    for one in calls:
        graph.add(one, id_bytes(one.prompt_ids))
    return graph


def joined(*calls):
    return trajectory_of(graph_of(*calls), WON, task_id="t", group_id="g")


def test_a_call_continues_the_longest_call_it_begins_with():
    graph = graph_of(call([1], [2]), call([1, 2, 3], [4]), call([1, 2, 3, 4, 5], [6]))
    assert graph.parents() == [None, 0, 1]
    assert graph.paths() == [[0, 1, 2]]


def test_ids_that_share_bytes_are_no_prefix():
    # 256 is 0 1 0 0 in little endian, and 1 is 1 0 0 0
    assert graph_of(call([0], [1]), call([0, 256], [4])).parents() == [None, None]


def test_a_conversation_is_one_window_with_its_observations():
    trajectory = joined(call([1], [2, 9], version=5), call([1, 2, 9, 3], [4], version=6))
    assert trajectory.policy_version == 5, "the oldest"
    assert trajectory.token_ids == (1, 2, 9, 3, 4)
    assert trajectory.action_mask == (0, 1, 1, 0, 1)
    assert trajectory.behavior_logprobs == (0.0, -2.0, -9.0, 0.0, -4.0)
    assert [(t.action_start, t.action_end, t.observation_end) for t in trajectory.turns] == [
        (1, 3, 4),
        (4, 5, 5),
    ]


def test_a_retry_is_a_window_that_reads_what_it_shares():
    trajectory = joined(call([1], [2]), call([1, 2, 3], [4]), call([1, 2, 3], [5]))
    assert trajectory.window_starts == (0, 4)
    assert trajectory.token_ids == (1, 2, 3, 4, 1, 2, 3, 5)
    assert trajectory.action_mask == (0, 1, 0, 1, 0, 0, 0, 1)
    assert [t.observation_end for t in trajectory.turns] == [3, 4, 8]


def test_a_sub_agent_is_a_root_of_its_own():
    trajectory = joined(call([1], [2]), call([7], [8]), call([1, 2, 3], [4]))
    assert trajectory.window_starts == (0, 4)
    assert trajectory.token_ids == (1, 2, 3, 4, 7, 8)


TOKENS = st.integers(0, 2)


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(TOKENS, max_size=2), TOKENS), max_size=8))
def test_every_sampled_token_is_trained_exactly_once(steps):
    """Calls go on from any earlier one, or begin anew."""
    calls = []
    for number, (at, read, wrote) in enumerate(steps):
        before = calls[at % len(calls)] if calls and at else None
        context = [] if before is None else [*before.prompt_ids, *before.answer_ids]
        calls.append(call([*context, 7, *read], [wrote, 100 + number]))
    trajectory = joined(*calls)
    trained = [
        token
        for token, mask in zip(trajectory.token_ids, trajectory.action_mask, strict=True)
        if mask
    ]
    assert sorted(trained) == sorted(token for one in calls for token in one.answer_ids)
    for span in trajectory.windows if calls else ():
        window = trajectory.token_ids[span]
        assert any(window == (*one.prompt_ids, *one.answer_ids) for one in calls)
    for turn in trajectory.turns:
        span = slice(turn.action_start, turn.action_end)
        before = next(s for s in trajectory.windows if s.start <= turn.action_start < s.stop)
        prompt = trajectory.token_ids[before.start : turn.action_start]
        assert any(
            (one.prompt_ids, one.answer_ids) == (prompt, trajectory.token_ids[span])
            for one in calls
        )
        assert trajectory.behavior_logprobs[span] == tuple(
            -float(i) for i in trajectory.token_ids[span]
        )


SENT_BACK = (
    ("1.0", "1"), ("-0.0", "0"), ("0.0", "0"), ("100.0", "100"), ("1e3", "1000"),
    ("9007199254740993", "9007199254740992"), ("1e21", "1e+21"), ("1E-7", "1e-7"),
    ("100000000000000000000000", "1e+23"), ("[1.0, [2.0, {\"a\": 3.0}]]", "[1,[2,{\"a\":3}]]"),
    ("{\"b\": 1.50, \"1\": 2.0}", "{\"1\":2,\"b\":1.5}"), ("1" + "0" * 400, "null"),
)  # fmt: skip
"""What a policy writes, and what `JSON.stringify(JSON.parse(it))` makes of it in node 20."""
OTHER = (("1.0", "1.5"), ("1", "true"), ("0", "false"), ("1", '"1"'), ("1", "[1]"), ("1", "-1"))


def said(text):
    arguments = {"value": json.loads(text)}
    calls = (ToolCall(name="f", arguments=arguments, call_id="c"),)
    return Message(role="assistant", tool_calls=calls)


@pytest.mark.parametrize(("written", "back"), SENT_BACK)
def test_numbers_are_known_as_javascript_sends_them_back(written, back):
    assert fingerprint(said(written)) == fingerprint(said(back))


@pytest.mark.parametrize(("written", "back"), OTHER)
def test_another_value_is_another_call(written, back):
    assert fingerprint(said(written)) != fingerprint(said(back))
