import random
from itertools import product

import pytest

from espalier.records import Message, Task, TaskMetadata, ToolCall, Verifier
from espalier.records.trajectory import FinishReason, Trajectory
from espalier_search.search_qa.renaming import NameExchange

NAMES = ["Abcdef", "Uvwxyz", "Klmnop"]
TASK = Task(
    task_id="train-1",
    prompt=(Message(role="user", content="What is the money of the country of Nice? Not nicely."),),
    environment="search_qa",
    verifier=Verifier(kind="exact_match", gold=("Euro",)),
    metadata=TaskMetadata(
        split="train", source="webshaper", extra={"entities": ["Nice", "New Nice", "Euro"]}
    ),
)
MESSAGES = (
    *TASK.prompt,
    Message(
        role="assistant",
        thought="country",
        tool_calls=(ToolCall(name="search", arguments={"query": "Nice country", "top": 1}),),
    ),
    Message(
        role="tool",
        content="Nice | country: New Nice | currency: Euro | nearest larger city: Lyon",
    ),
    Message(role="assistant", thought="answer", content="Euro"),
)


def _trajectory(**changes):
    fields = {
        "task_id": TASK.task_id, "group_id": "g", "messages": MESSAGES, "tool_results": (),
        "reward": {"outcome": 1.0}, "answer": "Euro", "finish_reason": FinishReason.ANSWERED,
        "policy_version": 0,
    }  # fmt: skip
    return Trajectory(**{**fields, **changes})


def test_a_name_is_exchanged_alike_wherever_it_stands_alone():
    task, renamed = NameExchange(NAMES, 1.0)(TASK, _trajectory(), random.Random(1))
    question, result = task.question, renamed.messages[2].content
    name = renamed.messages[1].tool_calls[0].arguments["query"].removesuffix(" country")
    assert name not in ("Nice", "New Nice")
    assert question == f"What is the money of the country of {name}? Not nicely."
    assert result.startswith(f"{name} | country: ")
    assert result.endswith(" | nearest larger city: Lyon")
    other = result.split(" | ")[1].removeprefix("country: ")
    assert "Nice" not in other  # the longer name is one name
    assert renamed.messages[0] == task.prompt[0]
    assert renamed.messages[-1].content not in ("Euro", "")
    assert renamed.messages[1].tool_calls[0].arguments["top"] == 1


def test_names_are_exchanged_in_the_asked_share():
    rng = random.Random(5)
    exchange = NameExchange(NAMES, 0.5)
    answers = [exchange(TASK, _trajectory(), rng)[1].messages[-1].content for _ in range(400)]
    assert answers.count("Euro") == pytest.approx(200, abs=40)
    assert len(set(answers)) > 5
    given = _trajectory()
    assert NameExchange(NAMES, 0.0)(TASK, given, rng) == (TASK, given)
    detour = _trajectory(detour="bad_query")
    assert NameExchange(NAMES, 1.0)(TASK, detour, rng) == (TASK, detour)


def test_without_a_route_titles_and_the_answer_are_exchanged():
    own, given = _own(
        "When was the Stalbri Museum founded?", "stalbri museum founded",
        ["the Stalbri Museum | The Stalbri Museum dates from 1974."], "1974",
    )  # fmt: skip
    task, renamed = NameExchange(NAMES * 400, 1.0)(own, given, random.Random(3))
    name = task.question.removeprefix("When was the ").removesuffix(" founded?")
    year = renamed.messages[-1].content
    heads, tails = zip(*((known[:3], known[3:]) for known in NAMES), strict=True)
    assert name in {"".join(halves) for halves in product(heads, tails)}
    assert year.isdecimal()
    assert len(year) == 4
    assert renamed.messages[1].tool_calls[0].arguments["query"] == f"{name.lower()} founded"
    assert renamed.messages[2].content == f"the {name} | The {name} dates from {year}."


def test_signs_in_names_are_no_patterns():
    extra = {"entities": ["Nice?", "Lyon (Rhône)"]}
    metadata = TASK.metadata.model_copy(update={"extra": extra})
    prompt = (Message(role="user", content="Is Lyon (Rhône) near Nice?"),)
    task = TASK.model_copy(update={"metadata": metadata, "prompt": prompt})
    renamed, _ = NameExchange(NAMES, 1.0)(task, _trajectory(messages=prompt), random.Random(2))
    assert renamed.question.startswith("Is ")
    assert "Lyon (Rhône)" not in renamed.question


def _own(question, query, observations, answer, thought="find"):
    """A question without a route and its demonstration: a search for each observation."""
    messages = [Message(role="user", content=question)]
    for observation in observations:
        call = ToolCall(name="search", arguments={"query": query})
        messages.append(Message(role="assistant", thought=thought, tool_calls=(call,)))
        messages.append(Message(role="tool", content=observation))
    messages.append(Message(role="assistant", thought="answer", content=answer))
    metadata = TASK.metadata.model_copy(update={"extra": {}})
    task = TASK.model_copy(update={"metadata": metadata, "prompt": tuple(messages[:1])})
    return task, _trajectory(messages=tuple(messages), answer=answer)


@pytest.mark.parametrize(
    ("question", "query", "answer", "thought"),
    [
        ("Who leads the Bank of Nice?", "bank nice leads", "Rossi", "find"),
        ("Is the Bank of Nice old?", "bank of nice", "yes", "find"),
        ("Who leads the Bank of Nice?", "bank of nice", "Rossi", "of the bank in Nice"),
    ],
    ids=["query_leaves_a_word_out", "answer_is_not_shown", "thought_holds_a_part"],
)
def test_no_demonstration_writes_what_was_not_read(question, query, answer, thought):
    shown = ["Bank of Nice | leader: Rossi"]
    task, given = _own(question, query, shown, answer, thought)
    exchange = NameExchange(NAMES, 1.0)
    assert exchange(task, given, random.Random(0)) == (task, given)


def test_names_in_thoughts_are_exchanged_and_no_result_shows_none():
    asked = ("Who leads the Bank of Nice?", "bank of nice")
    shown = ["no results", "Bank of Nice | leader: Rossi"]
    task, given = _own(*asked, shown, "Rossi", thought="look for the Bank of Nice")
    renamed, trajectory = NameExchange(NAMES, 1.0)(task, given, random.Random(0))
    name = renamed.question.removeprefix("Who leads the ").removesuffix("?")
    assert name != "Bank of Nice"
    assert trajectory.messages[1].thought == f"look for the {name}"
    assert trajectory.messages[2].content == "no results"
