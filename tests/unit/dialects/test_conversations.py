"""Whole conversations that others recorded, as a policy reads them in its dialect."""

import pytest

from espalier.dialects import SYNTAXES
from espalier.dialects.dialect import Dialect
from espalier.records import FinalAnswer, Message, PolicyError, ToolCall, ToolCalls
from espalier_search.synthesis.search_wording import search_call
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.tiny import TOOLS
from tests.unit.dialects.test_drift import ACTIONS, QUESTION, RESULTS, STEADY, embedded, told

ASKED_AGAIN = Message(role="user", content="And of Italy?")


def conversation(actions=ACTIONS, results=RESULTS):
    messages = list(QUESTION)
    for place, action in enumerate(actions):
        messages.append(action.message())
        messages += told(results[place]) if place < len(results) else ()
    return messages


def episode_ids(dialect, actions, results):
    ids = list(dialect.prompt_ids(QUESTION))
    for action, result in zip(actions, results, strict=True):
        ids += [*dialect.action_ids(action), *dialect.result_ids(told(result))]
    return tuple(ids)


@pytest.mark.parametrize("name", SYNTAXES)
def test_a_conversation_has_the_tokens_of_the_episode(name):
    dialect = embedded(name)
    for turns in range(4):
        messages = conversation(ACTIONS[:turns], RESULTS)
        ids = episode_ids(dialect, ACTIONS[:turns], RESULTS[:turns])
        assert dialect.conversation_ids(messages) == ids


@pytest.mark.parametrize("name", ["tags", "hermes"])
def test_the_same_holds_for_a_given_models_template(name):
    dialect = Dialect(byte_tokenizer(STEADY, ("<|im_start|>", "<|im_end|>")), TOOLS, name=name)
    messages = conversation(ACTIONS[:2], RESULTS)
    assert dialect.conversation_ids(messages) == episode_ids(dialect, ACTIONS[:2], RESULTS[:2])


def test_tools_are_told_before_the_first_question_alone():
    dialect = Dialect(byte_tokenizer(STEADY, ("<|im_end|>",)), TOOLS, name="tags")
    system = Message(role="system", content="Be brief.")
    told_text = dialect.text(dialect.conversation_ids([system, *conversation(), ASKED_AGAIN]))
    assert told_text.count("call a tool by writing") == 1
    assert told_text.index("Be brief.") < told_text.index("call a tool by writing")
    assert told_text.endswith("And of Italy?<|im_end|>\n<|im_start|>assistant\n")


def test_turns_between_two_questions_are_one_message_with_inline_results():
    dialect = Dialect(byte_tokenizer(STEADY, ("<|im_start|>",)), TOOLS, name="tags")
    text = dialect.text(dialect.conversation_ids([*conversation(), ASKED_AGAIN]))
    assert text.count("<|im_start|>assistant") == 2
    assert text.count("<information>") == len(RESULTS) + 1  # once in the instructions


def test_a_sentinel_in_any_message_cuts_nothing():
    for name in ("tags", "hermes"):
        dialect = embedded(name)
        answer = FinalAnswer("eu\ue000ro", "x").message()
        hostile = Message(role="user", content="a\ue000b")
        text = dialect.text(dialect.conversation_ids([hostile, answer, ASKED_AGAIN]))
        assert "\ue000" not in text
        assert "italy" in text


def test_tags_have_no_way_to_write_several_calls():
    call = ToolCall(name="search", arguments={"query": "lyon"})
    messages = [*QUESTION, ToolCalls((call, call), "x").message()]
    with pytest.raises(PolicyError, match=r'2 calls.*"tags"'):
        embedded("tags").conversation_ids(messages)
    assert embedded("hermes").conversation_ids(messages)


def test_a_call_of_no_tool_cannot_be_written_in_tags():
    messages = [*QUESTION, search_call("x", "lyon").message()]
    dialect = Dialect(embedded("tags").tokenizer, ())
    with pytest.raises(PolicyError, match="search"):
        dialect.conversation_ids(messages)
