"""Demonstrations and pairs of the user: which tokens are learned, and what is refused."""

import json
from functools import cache

import pytest

from espalier.config import EpisodeConfig, Profile
from espalier.dialects import SYNTAXES
from espalier.dialects.dialect import Dialect
from espalier.records import DataError, FinalAnswer, Message, ToolCall, ToolCalls
from espalier.training.demonstrations import encode_pieces
from espalier.training.own_traces import (
    JudgedQuestions,
    OwnTraces,
    check_own_traces,
    encode_trace,
    read_demonstrations,
    read_pairs,
)
from espalier_interop.exports.trl import trl_rows
from espalier_interop.exports.turns import ExportedTrajectory, exported_turns
from tests.factories import records
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.tiny import TOOLS, tiny_dialect
from tests.unit.dialects.test_drift import STEADY

ASKED = {"role": "user", "content": "country of lyon?"}
ANSWERED = {"role": "assistant", "content": "france"}


def call(query, call_id="c1"):
    function = {"name": "search", "arguments": json.dumps({"query": query})}
    return {"id": call_id, "type": "function", "function": function}


def calling(*calls, content=None):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(content, call_id="c1"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


TRACE = [ASKED, calling(call("lyon"), content="country"), result("lyon: france"), ANSWERED]


@pytest.fixture
def written(tmp_path):
    """A file of JSON lines; texts are written as they are."""

    def write(*rows):
        path = tmp_path / "rows.jsonl"
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
        return path

    return write


@cache
def hermes():
    """Of a given model, whose template knows tools."""
    return Dialect(byte_tokenizer(STEADY, ("<|im_start|>", "<|im_end|>")), TOOLS, name="hermes")


def learned(sequence, dialect):
    """The texts of the runs of tokens whose mask is 1."""
    runs, before = [], 0
    for token, taught in zip(sequence.token_ids, sequence.loss_mask, strict=True):
        if taught:
            if not before:
                runs.append([])
            runs[-1].append(token)
        before = taught
    return [dialect.text(run) for run in runs]


def only(path, dialect):
    (trace,) = read_demonstrations(path)
    return encode_trace(trace, dialect)


def test_only_what_the_policy_writes_is_learned(written):
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    dialect = hermes()
    sequence = only(written({"messages": [system, *TRACE], "tools": []}), dialect)
    assert learned(sequence, dialect) == [
        "<think>\ncountry\n</think>\n\n<tool_call>\n"
        '{"name": "search", "arguments": {"query": "lyon"}}\n</tool_call><|im_end|>',
        "france<|im_end|>",
    ]
    text = dialect.text(sequence.token_ids)
    assert "Be brief." in text
    assert "lyon: france" in text


@pytest.mark.parametrize("name", SYNTAXES)
def test_a_trace_has_the_tokens_of_the_teachers_demonstration(written, name):
    dialect = Dialect(byte_tokenizer(STEADY, ("<|im_start|>", "<|im_end|>")), TOOLS, name=name)
    answered = {**ANSWERED, "reasoning_content": "answer"}
    pieces = (
        ToolCalls((ToolCall(name="search", arguments={"query": "lyon"}),), "country"),
        (Message(role="tool", content="lyon: france"),),
        FinalAnswer("france", "answer"),
    )
    prompt = (Message(role="user", content="country of lyon?"),)
    trace = written({"messages": [*TRACE[:-1], answered]})
    assert only(trace, dialect) == encode_pieces(prompt, pieces, dialect)


def test_a_thought_in_the_text_is_a_thought(written):
    tagged = {"role": "assistant", "content": "<think>\nanswer\n</think>\n\nfrance\n"}
    apart = {**ANSWERED, "reasoning_content": "answer"}
    one, other = (only(written({"messages": [ASKED, said]}), hermes()) for said in (tagged, apart))
    assert one == other


def test_the_embedded_dialect_gets_the_thought_that_it_needs(written):
    sequence = only(written({"messages": TRACE}), tiny_dialect())
    answer = learned(sequence, tiny_dialect())[-1]
    assert tiny_dialect().parse_text(answer) == FinalAnswer("france", "")


def test_a_message_of_weight_0_is_read_and_not_learned(written):
    first = {**TRACE[1], "weight": 0}
    sequence = only(written({"messages": [ASKED, first, *TRACE[2:]]}), hermes())
    assert learned(sequence, hermes()) == ["france<|im_end|>"]


def test_of_prompt_and_completion_the_completion_is_learned(written):
    row = {"prompt": [*TRACE, {"role": "user", "content": "Sure?"}], "completion": [ANSWERED]}
    assert learned(only(written(row), hermes()), hermes()) == ["france<|im_end|>"]


def test_results_are_read_in_the_order_of_their_calls(written):
    calls = calling(call("lyon", "a"), call("paris", "b"))
    turned = [ASKED, calls, result("second", "b"), result("first", "a"), ANSWERED]
    (trace,) = read_demonstrations(written({"messages": turned}))
    assert [one.content for one in trace.messages if one.role == "tool"] == ["first", "second"]


def test_what_is_read_last_is_left_away(written):
    longer = [*TRACE, {"role": "user", "content": "Thanks."}]
    one, other = (only(written({"messages": it}), hermes()) for it in (longer, TRACE))
    assert one == other


def test_an_exported_trajectory_is_a_demonstration_again(written):
    messages = (
        Message(role="user", content="country of lyon?"),
        ToolCalls.one("search", {"query": "lyon"}, "country").message(),
        Message(role="tool", content="lyon: france"),
        FinalAnswer("france").message(),
    )
    task = records.make_task("lyon", "country of lyon?", gold=("france",))
    trajectory = records.make_trajectory("lyon", messages=messages)
    turns = exported_turns(trajectory, task)
    (row,) = trl_rows(ExportedTrajectory(0, trajectory, turns, task, TOOLS))
    assert only(written(row), hermes()) == only(written({"messages": TRACE}), hermes())


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("{", "JSON"),
        ("[]", "JSON object"),
        ({}, "messages"),
        ({"messages": [ASKED]}, "no message of the assistant"),
        ({"messages": [ANSWERED]}, "begins with the assistant"),
        ({"messages": [ASKED, ANSWERED, ANSWERED]}, "message 3 "),
        ({"messages": [ASKED, result("x"), ANSWERED]}, "message 2 "),
        ({"messages": [ASKED, {"role": "assistant", "content": ""}]}, "nothing"),
        ({"messages": [ASKED, {"role": "critic", "content": "x"}]}, "messages.1.role"),
        (
            {"messages": [ASKED, {"role": "assistant", "function_call": {"name": "f"}}]},
            "messages.1.function_call",
        ),
        (
            {"messages": [ASKED, calling(call("a"), call("b", "c2")), result("x"), ANSWERED]},
            "message 2 ",
        ),
        (
            {"messages": [ASKED, calling(call("a")), result("x", "other"), ANSWERED]},
            "ids",
        ),
        (
            {"messages": [ASKED, calling({"type": "function", "function": {
                "name": "search", "arguments": "[]"}})]},
            "JSON object",
        ),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "JSON"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_refused_by_file_and_line(written, row, complaint):
    path = written({"messages": TRACE}, row)
    with pytest.raises(DataError) as refused:
        read_demonstrations(path)
    assert str(refused.value).startswith(f"{path}, line 2: ")
    assert complaint in str(refused.value)


def test_a_call_of_no_tool_is_refused_by_line(written):
    function = {"name": "find", "arguments": "{}"}
    row = {"messages": [ASKED, calling({"type": "function", "function": function})]}
    with pytest.raises(DataError, match=r"line 1: .*find.*search"):
        only(written(row), hermes())


def test_a_dialect_of_one_call_refuses_two(written):
    row = {"messages": [ASKED, calling(call("a"), call("b", "c2"))]}
    with pytest.raises(DataError, match=r'line 1: .*"tags"'):
        only(written(row), tiny_dialect())


@pytest.mark.parametrize("name", ["demonstrations", "preferences"])
def test_files_are_read_before_a_run_begins(tmp_path, name):
    missing = tmp_path / "none.jsonl"
    given = missing if name == "demonstrations" else {"path": missing}
    profile = Profile.model_validate({"warm_start": {name: given}})
    with pytest.raises(DataError, match=r"none\.jsonl"):
        check_own_traces(profile.warm_start)
    missing.write_text("\n")
    with pytest.raises(DataError, match="no row"):
        check_own_traces(profile.warm_start)


# ------------------------------------------------------------------------- what is left out


def reader(*, limits=None, heldout=(), dev=(), symbols=False):
    tasks = {
        split: [
            records.make_task(f"{split}-{n}", text, gold=("x",)) for n, text in enumerate(asked)
        ]
        for split, asked in (("heldout", heldout), ("dev", dev))
    }
    return OwnTraces(
        dialect_of=lambda _: hermes(),
        judged=JudgedQuestions(tasks, reads_symbols=symbols),
        limits=EpisodeConfig(**({"max_tokens": 2000, "max_turn_tokens": 200} | (limits or {}))),
    )


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_tokens": 100, "max_turn_tokens": 10}, "longer_than_an_episode"),
        ({"max_turn_tokens": 20}, "longer_message_than_a_turn"),
    ],
)
def test_what_no_episode_could_hold_is_counted(written, limits, reason):
    short = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "x"}]}
    row = {"messages": TRACE}
    found = reader(limits=limits)
    if reason == "longer_message_than_a_turn":
        fit = found.demonstrations(written(row, short))
        assert (fit.used, fit.left_out) == (1, {reason: 1})
    with pytest.raises(DataError, match=f"1 {reason}"):
        found.demonstrations(written(row))


def test_more_calls_than_an_episode_allows_are_counted(written):
    twice = [*TRACE[:3], *TRACE[1:]]
    found = reader(limits={"max_turns": 1}).demonstrations(
        written({"messages": twice}, {"messages": TRACE})
    )
    assert (found.used, found.left_out) == (1, {"more_calls_than_turns": 1})


def test_a_demonstration_of_a_judged_question_is_left_out(written):
    other = {"messages": [{"role": "user", "content": "And of Nice?"}, ANSWERED]}
    inside = "Please tell: what is the currency of France? Thanks."
    asked = {"messages": [{"role": "user", "content": inside}, ANSWERED]}
    found = reader(
        heldout=["Country of Lyon"], dev=["What is the currency of France?"]
    ).demonstrations(written({"messages": TRACE}, asked, other))
    assert found.left_out == {"heldout_question": 1, "dev_question": 1}
    assert found.questions == ["And of Nice?"]


def test_questions_of_signs_are_told_apart_by_them(written):
    row = {"messages": [{"role": "user", "content": "What is 3 - 4 of it?"}, ANSWERED]}
    asked = ["What is 3 + 4 of it?"]
    assert reader(heldout=asked, symbols=True).demonstrations(written(row)).used == 1
    with pytest.raises(DataError, match="1 heldout_question"):
        reader(heldout=asked).demonstrations(written(row))


# ------------------------------------------------------------------------- pairs


CHOSEN, REJECTED = [ANSWERED], [{"role": "assistant", "content": "spain"}]
LONG = [calling(call("lyon")), result("lyon: france"), ANSWERED]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [ASKED], "chosen": CHOSEN, "rejected": REJECTED},
        {"prompt": "country of lyon?", "chosen": "france", "rejected": "spain"},
        {"chosen": [ASKED, *CHOSEN], "rejected": [ASKED, *REJECTED]},
        {"prompt": "country of lyon?", "chosen": [ASKED, *CHOSEN], "rejected": [ASKED, *REJECTED]},
    ],
)
def test_a_pair_in_any_form_of_trl_reads_alike(written, row):
    fit = reader().pairs(written(row))
    chosen, rejected = fit.sequences
    assert learned(chosen, hermes()) == ["france<|im_end|>"]
    assert learned(rejected, hermes()) == ["spain<|im_end|>"]
    assert fit.questions == ["country of lyon?"]


def test_every_message_behind_the_prompt_of_a_pair_counts(written):
    row = {"prompt": [ASKED], "chosen": LONG, "rejected": REJECTED}
    chosen, _ = reader().pairs(written(row)).sequences
    assert [text[-20:] for text in learned(chosen, hermes())] == [
        "</tool_call><|im_end|>"[-20:],
        "france<|im_end|>"[-20:],
    ]


def test_a_text_of_the_policy_keeps_its_marks(written):
    text = '<tool_call>\n{"name": "search", "arguments": {"query": "lyon"}}\n</tool_call>'
    row = {"prompt": "country of lyon?", "chosen": text, "rejected": "spain"}
    (pair,) = read_pairs(written(row))
    sequence = encode_trace(pair.chosen, hermes())
    (said,) = learned(sequence, hermes())
    assert said == f"{text}<|im_end|>"
    assert hermes().text_ids(text) == sequence.token_ids[-len(hermes().text_ids(text)) :]


def test_a_text_for_the_embedded_policy_becomes_an_answer(written):
    row = {"prompt": "country of lyon?", "chosen": "france", "rejected": "spain"}
    (pair,) = read_pairs(written(row))
    (said,) = learned(encode_trace(pair.chosen, tiny_dialect()), tiny_dialect())
    assert tiny_dialect().parse_text(said) == FinalAnswer("france", "")


def test_equal_and_judged_pairs_are_left_out(written):
    pair = {"prompt": "And of Nice?", "chosen": "france", "rejected": "spain"}
    fit = reader(dev=["country of lyon?"]).pairs(
        written(pair, {**pair, "rejected": "france"}, {**pair, "prompt": "Country of Lyon?"})
    )
    assert (fit.used, fit.left_out) == (1, {"chosen_equals_rejected": 1, "dev_question": 1})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"chosen": None}, "chosen: "),
        ({"rejected": []}, "rejected: "),
        ({"rejected": 3}, "rejected: "),
        ({"chosen": [ASKED]}, "chosen: "),
        ({"prompt": None}, "chosen: "),
        ({"prompt": [ASKED, ANSWERED]}, "chosen: message 3 "),
    ],
)
def test_a_malformed_pair_is_refused_by_file_and_line(written, change, complaint):
    path = written({"prompt": "q?", "chosen": "a", "rejected": "b"} | change)
    with pytest.raises(DataError) as refused:
        read_pairs(path)
    assert str(refused.value).startswith(f"{path}, line 1: {complaint}")
