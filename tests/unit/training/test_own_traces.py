"""Demonstrations and pairs of the user: which tokens are learned, and what is refused."""

import asyncio
import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from espalier.config import EpisodeConfig, Profile
from espalier.dialects import SYNTAXES
from espalier.dialects.dialect import Dialect
from espalier.environments import Step, ToolEnvironment
from espalier.records import (
    DataError,
    FinalAnswer,
    Message,
    PolicyError,
    ToolCall,
    ToolCalls,
    action_of,
)
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.episode import EpisodeContext, ToolRunner, run_episode
from espalier.training.demonstrations import encode_demonstration, encode_pieces
from espalier.training.own_traces import (
    JudgedQuestions,
    OwnTraces,
    check_own_traces,
    encode_trace,
    read_demonstrations,
    read_pairs,
)
from espalier.training.rl.rows import Group, dense_rows
from espalier_interop.exports.trl import trl_rows
from espalier_interop.exports.turns import ExportedTrajectory, exported_turns
from espalier_search.search_qa import SearchQA
from espalier_search.search_qa.family import search_tool
from tests.factories import records
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.tiny import TOOLS, LookupSearch, lookup_environments, tiny_dialect
from tests.fakes.scripted_engine import ScriptedEngine
from tests.unit.dialects.test_drift import (
    DROPS_THOUGHTS,
    OPENS_THOUGHTS,
    SHORTENS_OLD_RESULTS,
    STEADY,
)

ASKED = {"role": "user", "content": "country of lyon?"}
ANSWERED = {"role": "assistant", "content": "france"}


def calls(name, arguments, call_id="c1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def call(query, call_id="c1"):
    return calls("search", json.dumps({"query": query}), call_id)


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


def steady(name):
    """Of a given model, whose template knows tools."""
    return Dialect(byte_tokenizer(STEADY, ("<|im_start|>", "<|im_end|>")), TOOLS, name=name)


@cache
def hermes():
    return steady("hermes")


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
    system, dialect = {"role": "system", "content": [{"type": "text", "text": "Brief."}]}, hermes()
    sequence = only(written({"messages": [system, *TRACE], "tools": []}), dialect)
    assert learned(sequence, dialect) == [
        "<think>\ncountry\n</think>\n\n<tool_call>\n"
        '{"name": "search", "arguments": {"query": "lyon"}}\n</tool_call><|im_end|>',
        "france<|im_end|>",
    ]
    text = dialect.text(sequence.token_ids)
    assert "Brief." in text
    assert "lyon: france" in text


CLOSES_THOUGHTS = STEADY.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}",
)
"""As Qwen3's does without thinking: the prompt of each turn ends with an empty thought."""
TEMPLATES = {
    "keeps all": STEADY,
    "drops old thoughts": DROPS_THOUGHTS,
    "shortens old results": SHORTENS_OLD_RESULTS,
    "opens thoughts": OPENS_THOUGHTS,
    "writes empty thoughts": CLOSES_THOUGHTS,
}
MARKS = ("<|im_start|>", "<|im_end|>")
CONVERSATION = (
    Message(role="user", content="country of lyon?"),
    ToolCalls.one("search", {"query": "lyon"}, "country").message(),
    Message(role="tool", content="lyon: france"),
    FinalAnswer("france", "answer").message(),
    Message(role="user", content="and its currency?"),
    ToolCalls.one("search", {"query": "france currency"}, "currency").message(),
    Message(role="tool", content="france: euro"),
    FinalAnswer("euro", "answer again").message(),
)


def of_a_file(written, dialect):
    return only(written({"messages": json.loads(chat_rows(CONVERSATION))}), dialect)


def chat_rows(messages):
    rows = []
    for message in messages:
        row = {"role": message.role, "content": message.content}
        if message.thought is not None:
            row["reasoning_content"] = message.thought
        if message.tool_calls:
            row["tool_calls"] = [call(message.tool_calls[0].arguments["query"])]
        if message.role == "tool":
            row["tool_call_id"] = "c1"
        rows.append(row)
    return json.dumps(rows)


def of_a_teacher(dialect):
    task = records.make_task(question=CONVERSATION[0].content)
    demonstration = records.make_trajectory(messages=CONVERSATION)
    return encode_demonstration(demonstration, {"t": task}, lambda _task: dialect)


def of_an_episode(dialect):
    """Sampled tokens and their loss mask; the second question is the environment's."""

    class AsksAgain(ToolEnvironment):
        def step(self, action):
            if isinstance(action, FinalAnswer) and action.text == "france":
                return Step((CONVERSATION[4],))
            return super().step(action)

    search = LookupSearch(("lyon: france", "france: euro"))
    search.observation = {"lyon": "lyon: france", "france currency": "france: euro"}.get
    rules = SearchQA(Profile()).rules((search_tool(search),))
    written = [m for m in CONVERSATION if m.role == "assistant"]
    context = EpisodeContext(
        engine=ScriptedEngine(dialect, [dialect.action_ids(action_of(one)) for one in written]),
        dialect=dialect,
        environments=replace(lookup_environments(search), make=lambda _: AsksAgain(rules)),
        tools=ToolRunner(workers=0, timeout_s=5.0),
        limits=EpisodeConfig(max_tokens=4096, max_turn_tokens=256),
    )
    task = records.make_task(question=CONVERSATION[0].content)
    played = asyncio.run(run_episode(task, Sampling(temperature=1.0, seed=0), context)).trajectory
    [row] = dense_rows([Group(trajectories=(played,))], with_observations=False).sequences
    return row


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_template_moves_what_is_learned(written, name):
    # Automodel#3024: a mask of prefix lengths ran into tools' tokens, as old thoughts were dropped
    # Automodel#3739: the empty thought of the prompt was learned
    dialect = Dialect(byte_tokenizer(TEMPLATES[name], MARKS), TOOLS)
    opened = "<think>\n" if name == "opens thoughts" else ""
    said = [
        dialect.syntax.write(action_of(one), TOOLS).removeprefix(opened) + "<|im_end|>"
        for one in CONVERSATION
        if one.role == "assistant"
    ]
    for sequence in (of_a_file(written, dialect), of_a_teacher(dialect), of_an_episode(dialect)):
        assert learned(sequence, dialect) == said
        read = dialect.text(
            [
                token
                for token, taught in zip(sequence.token_ids, sequence.loss_mask, strict=True)
                if not taught
            ]
        )
        assert read.count("<|im_start|>assistant\n") == len(said)
        empty = "assistant\n<think>\n\n</think>\n\n"
        assert read.count(empty) == (4 if name == "writes empty thoughts" else 0)
        assert read.count("lyon: france") == read.count("france: euro") == 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_message_teaches_its_own_end(written, name):
    dialect = Dialect(byte_tokenizer(TEMPLATES[name], MARKS), TOOLS)
    for sequence in (of_a_file(written, dialect), of_a_teacher(dialect), of_an_episode(dialect)):
        pairs = list(zip(sequence.token_ids, (*sequence.loss_mask, 0), strict=False))
        taught = [
            token
            for (token, mask), (_, following) in pairwise([*pairs, (0, 0)])
            if mask and not following
        ]
        assert len(taught) == 4
        assert set(taught) <= dialect.stop_ids


@pytest.mark.parametrize("end", ["<|im_end|>\n", "<|im_end|>"])
def test_a_template_whose_end_opens_the_next_message_is_refused(end):
    # trl#5988: the end of a turn was the next message's, and no policy learned to stop
    opens = (
        "{% for m in messages %}{% if not loop.first %}END{% endif %}[{{ m.role }}] {{ m.content }}"
    )
    template = opens.replace("END", end) + "{% endfor %}{# <tool_call> #}"
    with pytest.raises(PolicyError, match=r"no token of its own.*policy\.dialect"):
        Dialect(byte_tokenizer(template, MARKS), TOOLS)


@pytest.mark.parametrize("name", SYNTAXES)
def test_a_trace_has_the_tokens_of_the_teachers_demonstration(written, name):
    dialect, answered = steady(name), {**ANSWERED, "reasoning_content": "answer"}
    pieces = (
        ToolCalls((ToolCall(name="search", arguments={"query": "lyon"}),), "country"),
        (Message(role="tool", content="lyon: france"),),
        FinalAnswer("france", "answer"),
    )
    prompt = (Message(role="user", content="country of lyon?"),)
    trace = written({"messages": [*TRACE[:-1], answered]})
    assert only(trace, dialect) == encode_pieces(prompt, pieces, dialect)


@pytest.mark.parametrize(
    ("given", "alike"),
    [
        (
            [ASKED, {**ANSWERED, "content": "<think>\nanswer\n</think>\n\nfrance\n"}],
            [ASKED, {**ANSWERED, "reasoning_content": "answer"}],
        ),
        ([*TRACE, {"role": "user", "content": "Thanks."}], TRACE),
    ],
    ids=["a thought in the text", "what is read last is left away"],
)
def test_traces_of_one_meaning_have_the_same_tokens(written, given, alike):
    one, other = (only(written({"messages": it}), hermes()) for it in (given, alike))
    assert one == other


def test_the_embedded_dialect_gets_the_thought_that_it_needs(written):
    sequence = only(written({"messages": TRACE}), tiny_dialect())
    answer = learned(sequence, tiny_dialect())[-1]
    assert tiny_dialect().parse_text(answer) == FinalAnswer("france", "")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASKED, {**TRACE[1], "weight": 0}, *TRACE[2:]]},
        {"prompt": [*TRACE, {"role": "user", "content": "Sure?"}], "completion": [ANSWERED]},
    ],
    ids=["weight 0", "prompt and completion"],
)
def test_what_is_only_read_is_not_learned(written, row):
    assert learned(only(written(row), hermes()), hermes()) == ["france<|im_end|>"]


def test_results_are_read_in_the_order_of_their_calls(written):
    both = calling(call("lyon", "a"), call("paris", "b"))
    turned = [ASKED, both, result("second", "b"), result("first", "a"), ANSWERED]
    (trace,) = read_demonstrations(written({"messages": turned}))
    assert [one.content for one in trace.messages[2:4]] == ["first", "second"]


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
        ({"messages": [ASKED, calling(call("a")), result("x", "other"), ANSWERED]}, "ids"),
        ({"messages": [ASKED, calling(calls("search", "[]"))]}, "JSON object"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "JSON"),
    ],
)
def test_a_malformed_row_is_refused_by_file_and_line(written, row, complaint):
    path = written({"messages": TRACE}, row)
    with pytest.raises(DataError) as refused:
        read_demonstrations(path)
    assert str(refused.value).startswith(f"{path}, line 2: ")
    assert complaint in str(refused.value)


def test_calls_that_a_dialect_cannot_write_are_refused_by_line(written):
    with pytest.raises(DataError, match=r"line 1: .*find.*search"):
        only(written({"messages": [ASKED, calling(calls("find", "{}"))]}), hermes())
    with pytest.raises(DataError, match=r'line 1: .*"tags"'):
        only(written({"messages": [ASKED, calling(call("a"), call("b", "c2"))]}), tiny_dialect())


def test_files_are_read_before_a_run_begins(tmp_path):
    missing, empty = tmp_path / "none.jsonl", tmp_path / "empty.jsonl"
    empty.write_text("\n")
    for path, said in ((missing, r"none\.jsonl"), (empty, "no row")):
        for table in ({"demonstrations": path}, {"preferences": {"path": path}}):
            profile = Profile.model_validate({"warm_start": table})
            with pytest.raises(DataError, match=said):
                check_own_traces(profile.warm_start)


# ------------------------------------------------------------------------- what is left out


def reader(*, limits=None, symbols=False, **judged):
    tasks = {
        split: [
            records.make_task(f"{split}-{n}", text, gold=("x",))
            for n, text in enumerate(judged.get(split, ()))
        ]
        for split in ("heldout", "dev")
    }
    return OwnTraces(
        dialect_of=lambda _: hermes(),
        judged=JudgedQuestions(tasks, reads_symbols=symbols),
        limits=EpisodeConfig(**({"max_tokens": 2000, "max_turn_tokens": 200} | (limits or {}))),
    )


@pytest.mark.parametrize(
    ("limits", "row", "reason"),
    [
        ({"max_tokens": 100, "max_turn_tokens": 10}, TRACE, "longer_than_an_episode"),
        ({"max_turn_tokens": 20}, TRACE, "longer_message_than_a_turn"),
        ({"max_turns": 1}, [*TRACE[:3], *TRACE[1:]], "more_calls_than_turns"),
    ],
)
def test_what_no_episode_could_hold_is_counted(written, limits, row, reason):
    short = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "x"}]}
    found = reader(limits=limits)
    if reason != "longer_than_an_episode":
        fit = found.demonstrations(written({"messages": row}, short))
        assert (fit.used, fit.left_out) == (1, {reason: 1})
    with pytest.raises(DataError, match=f"1 {reason}"):
        found.demonstrations(written({"messages": row}))


def test_a_demonstration_of_a_judged_question_is_left_out(written):
    texts = [
        "country of lyon?",
        "Please tell: what is the currency of France? Thanks.",
        "And of Nice?",
    ]
    asked = [{"messages": [{"role": "user", "content": text}, ANSWERED]} for text in texts]
    judged = {"heldout": ["Country of Lyon"], "dev": ["What is the currency of France?"]}
    found = reader(**judged).demonstrations(written(*asked))
    assert found.left_out == {"heldout_question": 1, "dev_question": 1}
    assert found.questions == texts[2:]
    signs = written({"messages": [{"role": "user", "content": "What is 3 - 4 of it?"}, ANSWERED]})
    other = ["What is 3 + 4 of it?"]
    assert reader(heldout=other, symbols=True).demonstrations(signs).used == 1
    with pytest.raises(DataError, match="1 heldout_question"):
        reader(heldout=other).demonstrations(signs)


# ------------------------------------------------------------------------- pairs


CHOSEN, REJECTED = [ANSWERED], [{"role": "assistant", "content": "spain"}]


@pytest.mark.parametrize(
    "row",
    [
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
    chosen = [calling(call("lyon")), result("lyon: france"), ANSWERED]
    row = {"prompt": [ASKED], "chosen": chosen, "rejected": REJECTED}
    called, answered = learned(reader().pairs(written(row)).sequences[0], hermes())
    assert called.endswith("</tool_call><|im_end|>")
    assert answered == "france<|im_end|>"


def test_a_text_of_the_policy_keeps_its_marks(written):
    text = '<tool_call>\n{"name": "search", "arguments": {"query": "lyon"}}\n</tool_call>'
    row = {"prompt": "country of lyon?", "chosen": text, "rejected": "france"}
    (pair,) = read_pairs(written(row))
    sequence = encode_trace(pair.chosen, hermes())
    assert learned(sequence, hermes()) == [f"{text}<|im_end|>"]
    assert hermes().text_ids(text) == sequence.token_ids[-len(hermes().text_ids(text)) :]
    (said,) = learned(encode_trace(pair.rejected, tiny_dialect()), tiny_dialect())
    assert tiny_dialect().parse_text(said) == FinalAnswer("france", ""), "embedded: an answer"


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
