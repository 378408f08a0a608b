import asyncio
import re
from dataclasses import replace

import pytest

from espalier.environments.funnel import Funnel
from espalier.records import FinalAnswer, Message, ToolCalls
from espalier.records.trajectory import FinishReason
from espalier_search.synthesis.agent_texts.calls import Alternatives, Candidate, Plan
from espalier_search.synthesis.agent_texts.decisions import Decider
from espalier_search.synthesis.rollouts import attempt_by_plan
from tests.factories.records import make_task

from . import tags

TASK = make_task("t1", "Name the capital of the country of Lyon.", gold=("Paris",), hops=2)
LINES = {"Lyon country": "Lyon | country: France", "France capital": "France | capital: Paris"}


class Lookup:
    def observation(self, query):
        return LINES.get(query, "no results")


class Offers:
    """A model that offers the same candidates at every step, the one taken among them."""

    def __init__(self, *candidates):
        self._candidates = candidates
        self.told = []

    async def answer(self, request):
        self.told.append(request.material)
        taken = request.material.taken
        return Alternatives(candidates=(*self._candidates, taken, *self._candidates))


OTHERS = (
    Candidate(thought="capital", action="search", text="Lyon capital"),
    Candidate(thought="answer", action="answer", text="Lyon"),
)


def attempt(analysis="country , capital", query="Lyon country"):
    return attempt_by_plan(TASK, Plan(analysis=analysis, tool="search", query=query), Lookup())


def wanted_of(action):
    return action.calls[0].arguments["query"] if isinstance(action, ToolCalls) else action.text


def decided(model, *trajectories, alternatives=2):
    funnel = Funnel()
    decider = Decider(model, alternatives, funnel, tags.write, seed=1, in_flight=2)

    async def collect():
        return [text async for text in decider.texts((TASK, t) for t in trajectories)]

    return asyncio.run(collect()), funnel.counts("decisions")


@pytest.mark.parametrize(
    ("analysis", "query", "answer", "outcome"),
    [
        ("country , capital", "Lyon country", "Paris", 1.0),
        ("country", "Lyon country", "France", 0.0),
        ("capital", "Lyon capital", "unknown", 0.0),
    ],
)
def test_an_attempt_follows_its_plan_to_a_verified_outcome(analysis, query, answer, outcome):
    trajectory = attempt(analysis, query)
    assert trajectory.answer == answer
    assert trajectory.reward == {"outcome": outcome}
    assert trajectory.finish_reason is FinishReason.ANSWERED


def test_every_step_chooses_among_shuffled_options_before_the_response():
    model = Offers(*OTHERS)
    (text,), counts = decided(model, attempt())
    roles = [piece.role for piece in text.pieces]
    assert roles == ["assistant", "tool", "assistant", "tool", "assistant"]
    assert [p.content for p in text.pieces if p.role == "tool"] == list(LINES.values())
    wanted = iter(["Lyon country", "France capital", "Paris"])
    for piece in text.pieces[::2]:
        listed, number = re.fullmatch(
            r"(Option 1: .*) I will choose option (\d)\.(?: My decision is Correct\.)?",
            piece.content,
        ).groups()
        spelled = re.split(r"(?:^| )Option \d: ", listed)[1:]
        options = [tags.parse(option) for option in spelled]
        assert 2 <= len(options) <= 3
        assert len(set(spelled)) == len(options)
        assert all(isinstance(option, ToolCalls | FinalAnswer) for option in options)
        assert wanted_of(options[int(number) - 1]) == next(wanted)
    assert counts == {"kept_correct": 1}
    assert text.style == "correct"


def test_the_text_ends_with_what_really_came_of_it():
    (right, wrong), counts = decided(Offers(*OTHERS), attempt(), attempt("country"))
    assert right.pieces[-1].content.endswith("My decision is Correct.")
    assert wrong.pieces[-1].content.endswith("My decision is Incorrect.")
    assert counts == {"kept_correct": 1, "kept_incorrect": 1}


def test_the_chosen_option_is_not_always_at_the_same_place():
    attempts = [replace(attempt(), group_id=f"teacher/{number}") for number in range(40)]
    texts, _ = decided(Offers(*OTHERS), *attempts)
    places = {re.search(r"choose option (\d)", text.pieces[0].content)[1] for text in texts}
    assert places == {"1", "2", "3"}


def test_alternatives_see_what_was_seen_and_not_what_comes():
    model = Offers(*OTHERS)
    decided(model, attempt())
    assert [told.seen for told in model.told] == [
        (),
        ("Lyon | country: France",),
        tuple(LINES.values()),
    ]


def test_a_step_without_another_option_makes_no_decision():
    assert decided(Offers(), attempt()) == ([], {"no_alternative": 1})


def test_a_malformed_trajectory_makes_no_decision_text():
    whole = attempt()
    strange = (*TASK.prompt, Message(role="assistant", content="<map> x"))
    for messages, reason in (
        (strange, "malformed_action"),
        (whole.messages[:-1], "never_answered"),
    ):
        broken = replace(whole, messages=messages)
        assert decided(Offers(*OTHERS), broken) == ([], {reason: 1})
