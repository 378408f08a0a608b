"""What a policy is asked, and taken to answer, where no tool is offered."""

import pytest

from espalier.config import Profile
from espalier.dialects.dialect import Dialect
from espalier.environments.search_qa import SearchQA
from espalier.records import FinalAnswer, ToolCall, ToolCalls
from espalier.rollout.closed_book import ClosedBookQuestion, stated_answer
from espalier.rollout.roller import Roller
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.records import make_task
from tests.factories.tiny import (
    TOOLS,
    LookupSearch,
    lookup_environments,
    tiny_dialect,
    tiny_policy,
)

CHATML = (
    "{% if tools is not none %}tools: {{ tools }}\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TASK = make_task("t", "What is the capital of France?", gold=("Paris",))
CALL = ToolCalls((ToolCall(name="search", arguments={"query": "France"}),), thought="country")


def dialect_over(template, name, tools=TOOLS, instructions=""):
    tokenizer = byte_tokenizer(template, ("<|im_start|>", "<|im_end|>"))
    tokenizer.eos_token = "<|im_end|>"
    return Dialect(tokenizer, tools, name=name, instructions=instructions)


@pytest.mark.parametrize("name", ["tags", "hermes", "llama3"])
def test_a_bare_prompt_is_the_question_behind_the_instructions(name):
    dialect = dialect_over(CHATML, name, (), SearchQA.closed_book)
    assert dialect.text(dialect.bare_prompt_ids(TASK.prompt)) == (
        "<|im_start|>user\nAnswer the question from memory. Give only the name as the answer.\n"
        "What is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("tags", "Paris.<|im_end|>", "Paris."),
        ("tags", "<answer> Paris </answer>", "Paris"),
        ("tags", "<think> the capital </think> <answer> Paris </answer>", "Paris"),
        ("tags", "<think> country </think> <search> France </search>", None),
        ("tags", "<think> the capital </think> Paris<|im_end|>", "Paris"),
        ("tags", "<|im_end|>", None),
        ("hermes", "Paris<|im_end|>", "Paris"),
        ("hermes", "<think>\nthe capital\n</think>\n\nParis<|im_end|>", "Paris"),
        ("hermes", "<answer>Paris</answer><|im_end|>", "Paris"),
        ("hermes", "<tool_call> broken", "<tool_call> broken"),
    ],
)
def test_the_answer_is_what_the_message_states(name, text, answer):
    dialect = dialect_over(CHATML, name)
    assert stated_answer(dialect.tokenizer.encode(text), dialect) == answer


@pytest.mark.parametrize("name", ["tags", "hermes"])
def test_a_call_is_no_answer_from_memory(name):
    dialect = dialect_over(CHATML, name)
    assert stated_answer(dialect.action_ids(CALL), dialect) is None
    assert stated_answer(dialect.action_ids(FinalAnswer("Paris", "known")), dialect) == "Paris"


def test_every_question_gets_one_greedy_message_without_tools():
    profile = Profile.model_validate({"episode": {"max_turn_tokens": 12}})
    policy = tiny_policy()
    searched = LookupSearch(())
    roller = Roller.local(policy, lookup_environments(searched, profile), profile)
    tasks = [TASK, make_task("u", "currency of France")]
    questions = [ClosedBookQuestion(task, SearchQA.closed_book) for task in tasks]

    answers = roller.closed_book(questions)

    assert answers == roller.closed_book(questions), "greedy"
    assert roller.closed_book(questions[1:]) == answers[1:], "side by side or alone"
    prompts = [len(tiny_dialect().bare_prompt_ids(task.prompt)) for task in tasks]
    assert 0 < roller.action_tokens <= 5 * 12
    assert roller.total_tokens == 2 * prompts[0] + 3 * prompts[1] + roller.action_tokens
    assert roller.seconds > 0


def test_a_prompt_that_fills_the_context_gets_no_answer():
    profile = Profile.model_validate({"episode": {"max_tokens": 16, "max_turn_tokens": 4}})
    roller = Roller.local(tiny_policy(), lookup_environments(LookupSearch(()), profile), profile)
    long = make_task("l", "What is the currency of the country of Lyon? " * 4)
    assert roller.closed_book([ClosedBookQuestion(long, "")]) == [None]
    assert roller.action_tokens == 0
