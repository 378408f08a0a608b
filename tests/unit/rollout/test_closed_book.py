"""What a policy is asked, and taken to answer, where no tool is offered."""

import asyncio

import pytest

from espalier.config import EpisodeConfig, Profile
from espalier.dialects.dialect import Dialect
from espalier.rollout.closed_book import ClosedBookQuestion, closed_book_answer, stated_answer
from espalier.rollout.engines.engine import Completion
from espalier.rollout.episode import EpisodeContext, ToolRunner
from espalier.rollout.roller import Roller
from espalier_search.search_qa import SearchQA
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.records import make_task
from tests.factories.tiny import TOOLS, LookupSearch, lookup_environments, tiny_policy

CHATML = (
    "{% if tools is not none %}tools: {{ tools }}\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOLD = SearchQA.closed_book._replace(examples=(("Who wrote Hamlet?", "Shakespeare"),))
TASK = make_task("t", "What is the capital of France?", gold=("Paris",))
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "France"}}\n</tool_call>'


def dialect_over(template, name, tools=TOOLS, instructions=""):
    tokenizer = byte_tokenizer(template, ("<|im_start|>", "<|im_end|>"))
    tokenizer.eos_token = "<|im_end|>"
    return Dialect(tokenizer, tools, name=name, instructions=instructions)


ASKED = (
    "<|im_start|>user\nAnswer the question from memory. Give only the name as the answer.\n"
    "{}<|im_end|>\n<|im_start|>assistant\n"
)
EXAMPLE = (
    ASKED.format("Who wrote Hamlet?") + "{said}<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.mark.parametrize("name", ["tags", "hermes", "llama3"])
def test_a_bare_prompt_is_the_question_behind_the_instructions(name):
    dialect = dialect_over(CHATML, name, (), TOLD.instructions)
    bare = dialect.text(dialect.bare_prompt_ids(TASK.prompt))
    assert bare == ASKED.format("What is the capital of France?")


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("tags", "Paris.<|im_end|>", "Paris."),
        ("tags", "<answer> Paris </answer>", "Paris"),
        ("tags", "<think> country </think> <search> France </search>", None),
        ("tags", "<think> the capital </think> Paris<|im_end|>", "Paris"),
        ("tags", "<|im_end|>", None),
        ("hermes", "<think>\nthe capital\n</think>\n\nParis<|im_end|>", "Paris"),
        ("hermes", "<answer>Paris</answer><|im_end|>", "Paris"),
        ("hermes", "<tool_call> broken", "<tool_call> broken"),
        ("hermes", CALL, None),
    ],
)
def test_the_answer_is_what_the_message_states(name, text, answer):
    dialect = dialect_over(CHATML, name)
    assert stated_answer(dialect.tokenizer.encode(text), dialect) == answer


class Writing:
    """An engine whose policy writes given messages, one a session."""

    def __init__(self, *messages):
        self.read = []
        self._messages = list(messages)

    async def open(self, prompt_ids, sampling):
        assert sampling.temperature == 0.0
        self.read.append(tuple(prompt_ids))
        return self

    async def sample(self, *, max_tokens):
        token_ids = tuple(self._messages.pop(0))
        return Completion(token_ids[:max_tokens], (0.0,) * len(token_ids), stopped=True)

    def close(self):
        pass


def asked(dialect, *messages):
    """What is answered where the policy writes these messages, and what it had read before each."""
    engine = Writing(*map(dialect.tokenizer.encode, messages))
    context = EpisodeContext(
        engine=engine,
        dialect=dialect,
        environments=lookup_environments(LookupSearch(())),
        tools=ToolRunner(workers=0, timeout_s=1.0),
        limits=EpisodeConfig(max_tokens=4096, max_turn_tokens=400),
    )
    question = ClosedBookQuestion(TASK, TOLD)
    return asyncio.run(closed_book_answer(question, context)), list(map(dialect.text, engine.read))


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        (" Paris </answer>", "Paris"),
        (" Paris <search> Lyon </search>", "Paris"),
        ("<search> Lyon </search>", None),
        ("<|im_end|>", None),
    ],
)
def test_the_policy_writes_behind_examples_and_an_opened_answer(written, answer):
    answered, read = asked(dialect_over(CHATML, "tags"), written)
    assert answered == answer, "what stands before the next tag"
    assert read == [EXAMPLE.format(said="<answer> Shakespeare </answer>") + "<answer>"]


def test_a_dialect_without_tags_shows_answers_alone():
    answered, read = asked(dialect_over(CHATML, "hermes"), "Paris")
    assert (answered, read) == ("Paris", [EXAMPLE.format(said="Shakespeare")])
    assert asked(dialect_over(CHATML, "hermes"), CALL)[0] is None


def test_answers_from_memory_are_greedy_and_counted():
    profile = Profile.model_validate({"episode": {"max_turn_tokens": 12}})
    environments = lookup_environments(LookupSearch(()), profile)
    roller = Roller.local(tiny_policy(), environments, profile)
    tasks = [TASK, make_task("u", "currency of France")]
    questions = [ClosedBookQuestion(task, TOLD) for task in tasks]

    answers = roller.closed_book(questions)

    assert answers == roller.closed_book(questions)
    assert roller.closed_book(questions[1:]) == answers[1:], "side by side or alone"
    assert 0 < roller.action_tokens <= 5 * 12
    assert roller.total_tokens > roller.action_tokens
    assert roller.seconds > 0


def test_a_prompt_that_fills_the_context_gets_no_answer():
    profile = Profile.model_validate({"episode": {"max_tokens": 16, "max_turn_tokens": 4}})
    roller = Roller.local(tiny_policy(), lookup_environments(LookupSearch(()), profile), profile)
    long = make_task("l", "What is the currency of the country of Lyon? " * 4)
    assert roller.closed_book([ClosedBookQuestion(long, TOLD)]) == [None]
    assert roller.action_tokens == 0
