"""A model rewords a user's questions over HTTP; what does not fit is refused by its reason."""

import json

from espalier.config import EndpointConfig
from espalier.environments.funnel import Funnel
from espalier_search.synthesis.own_questions import OwnQuestion
from espalier_search.synthesis.rewording import HEADING, reworded_questions
from tests.fakes.endpoint_double import completion, running_double

PAIR = OwnQuestion("Where was Ada born?", ("London",), "document:a", "train")


def _reworded(content, wanted=3):
    funnel = Funnel()
    with running_double() as double:
        double.respond = lambda _: completion(content)
        endpoint = EndpointConfig(url=double.url, model="m", attempts=1, asks=1)
        found = reworded_questions(
            [PAIR],
            endpoint,
            wanted=wanted,
            titles={"document:a": "Ada"},
            taken=frozenset({"where was ada born"}),
            funnel=funnel,
        )
        seen = json.loads(double.seen[0][1]["messages"][1]["content"])
    assert seen == {"question": PAIR.question, "answer": "London", "wanted": wanted}
    return [one.question for one in found], funnel.counts(HEADING)


def test_rewordings_that_fit_become_questions_of_the_same_fact():
    questions = ["In which town was Ada born?", "Ada was born where?"]
    assert _reworded(json.dumps({"questions": questions})) == (questions, {"kept": 2})
    assert _reworded("Sure, here are some.") == ([], {"answer_broken_json": 1})


def test_what_does_not_fit_is_refused_by_its_reason():
    questions = ["Where was  ada born", "Where was she born?", "Was Ada born in London?",
                 "Where " * 50, "Ada's birthplace?", "Ada's  birthplace"]  # fmt: skip
    found, counts = _reworded(json.dumps({"questions": questions}), wanted=6)
    assert found == ["Ada's birthplace?"]
    assert counts == {
        "asked_before": 2,
        "name_lost": 1,
        "gives_the_answer_away": 1,
        "empty_or_too_long": 1,
        "kept": 1,
    }
