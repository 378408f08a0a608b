"""Each format holds the tokens that were sampled, once each, and what the policy saw before."""

import json

import pytest

from espalier.records import ArtifactError, Message, ToolCall, ToolSpec
from espalier.records.trajectory import FinishReason
from espalier_interop.exports.atif import atif_rows
from espalier_interop.exports.otlp import otlp_rows
from espalier_interop.exports.trl import trl_rows, trl_token_rows
from espalier_interop.exports.turns import ExportedTrajectory, exported_turns
from espalier_interop.exports.verifiers import verifiers_rows
from tests.factories.attempts import made_attempt
from tests.factories.records import make_task, make_trajectory
from tests.factories.sample_run import trajectory

TOOLS = (ToolSpec(name="search", parameters={"type": "object", "properties": {}}),)


def exported(attempt, task=None, tools=TOOLS):
    return ExportedTrajectory(7, attempt, exported_turns(attempt, task), task, tools)


def sampled(attempt):
    pairs = zip(attempt.token_ids, attempt.behavior_logprobs, attempt.action_mask, strict=True)
    return [(token, logprob) for token, logprob, mask in pairs if mask]


def paths(nodes):
    """The nodes of each path from a root to a leaf."""
    leaves = set(range(len(nodes))) - {node.get("parent") for node in nodes}
    for leaf in sorted(leaves):
        path, at = [], leaf
        while at is not None:
            path.insert(0, nodes[at])
            at = nodes[at].get("parent")
        yield path


def test_every_format_holds_the_sampled_tokens_in_their_context():
    for seed in range(200):
        check_tokens(made_attempt(seed))


def check_tokens(attempt):
    one = exported(attempt)

    (trace,) = verifiers_rows(one)[0]["traces"]
    found = [
        (
            [token for node in path for token in node["token_ids"]],
            [mask for node in path for mask in node["mask"]],
        )
        for path in paths(trace["nodes"])
    ]
    assert found == [
        ([*attempt.token_ids[window]], [bool(one) for one in attempt.action_mask[window]])
        for window in attempt.windows
    ]
    logprobs = [one for node in trace["nodes"] for one in node.get("logprobs", ())]
    assert logprobs == pytest.approx([one for _, one in sampled(attempt)], rel=1e-8)

    (document,) = atif_rows(one)
    steps = [step["metrics"] for step in document["steps"] if "metrics" in step]
    ids = [token for step in steps for token in step["completion_token_ids"]]
    assert ids == [token for token, _ in sampled(attempt)]
    for step, turn in zip(steps, attempt.turns, strict=True):
        start = max(one for one in attempt.window_starts if one <= turn.action_start)
        assert step["prompt_token_ids"] == [*attempt.token_ids[start : turn.action_start]]

    trained = [
        token
        for row in trl_token_rows(one)
        for token, mask in zip(row["input_ids"], row["assistant_masks"], strict=True)
        if mask
    ]
    assert trained == [token for token, _ in sampled(attempt)]

    (row,) = trl_rows(one)
    open_calls = {}
    for message in [*row["prompt"], *row["completion"]]:
        if message["role"] == "tool":
            assert message["name"] == open_calls.pop(message["tool_call_id"])
        calls = message.get("tool_calls", [])
        open_calls |= {call["id"]: call["function"]["name"] for call in calls}


def test_a_conversation_is_split_where_the_policy_begins():
    (row,) = trl_rows(exported(trajectory(1, "Lyon | country: France", "Paris")))
    assert [message["role"] for message in row["prompt"]] == ["user"]
    called, result, ended = row["completion"]
    (call,) = called["tool_calls"]
    assert call["function"] == {"name": "search", "arguments": {"query": "Lyon country"}}
    assert called["reasoning_content"] == "find the country"
    assert (result["content"], result["tool_call_id"]) == ("Lyon | country: France", call["id"])
    assert (ended["content"], ended["reasoning_content"]) == ("Paris", "done")
    assert (row["label"], row["reward"]) == (True, 1.1)
    assert json.loads(row["tools"])[0]["function"]["name"] == "search"


def test_an_attempt_that_was_lost_has_no_reward():
    lost = made_attempt(0, "t")
    lost = make_trajectory(messages=lost.messages, finish_reason=FinishReason.TIMEOUT)
    (row,) = trl_rows(exported(lost))
    assert not {"label", "reward"} & row.keys()
    (episode,) = verifiers_rows(exported(lost))
    assert (episode["ok"], episode["traces"][0]["is_timeout"]) == (False, True)
    (document,) = atif_rows(exported(lost))
    assert "reward" not in document["extra"]


def test_a_demonstration_has_its_messages_and_no_tokens():
    task = make_task(question="which?")
    example = Message(role="assistant", content="an example")
    task = task.model_copy(update={"prompt": (*task.prompt, example, *task.prompt)})
    shown = make_trajectory(messages=(*task.prompt, Message(role="assistant", content="x")))
    (row,) = trl_rows(exported(shown, task))
    assert [len(row["prompt"]), len(row["completion"])] == [3, 1]
    assert trl_token_rows(exported(shown, task)) == []
    (document,) = atif_rows(exported(shown, task))
    assert [step.get("llm_call_count") for step in document["steps"]] == [None, 0, None, 1]


def test_no_format_holds_the_gold_answer():
    task = make_task(gold=("secret gold",))
    attempt = made_attempt(3)
    for rows in (verifiers_rows, trl_rows, trl_token_rows, atif_rows, otlp_rows):
        assert "secret gold" not in json.dumps(rows(exported(attempt, task)))


def test_ids_of_calls_are_told_apart_over_the_whole_attempt():
    call = ToolCall(name="a", call_id="same")
    said = [Message(role="assistant", tool_calls=(call, call)), Message(role="tool", content="1")]
    turns = exported_turns(make_trajectory(messages=(*said, *said)), None)
    ids = [call.call_id for turn in turns if turn.wrote for call in turn.wrote.tool_calls]
    assert len(set(ids)) == 4


def test_fewer_messages_than_turns_are_refused():
    attempt = made_attempt(1)
    cut = make_trajectory(
        messages=attempt.messages[:1],
        **{
            name: getattr(attempt, name)
            for name in ("token_ids", "action_mask", "behavior_logprobs", "turns", "window_starts")
        },
    )
    with pytest.raises(ArtifactError, match="only 0"):
        exported_turns(cut, None)
