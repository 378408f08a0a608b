import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from espalier.config import CanaryConfig
from espalier.serving.score import (
    MOST_LATENCIES,
    AnswerPair,
    Outcome,
    Served,
    ServedScore,
    StepAnswers,
    chance_of_losing,
    exact_match_shortfall,
    missing_answers,
    percentile_99,
    shortfall,
)

CONFIG = CanaryConfig(
    steps=(0.5, 1.0), min_requests=10, max_error_share=0.1, max_invalid_share=0.1,
    max_latency_ratio=2.0, latency_slack_s=0.1, alpha=0.05,
)  # fmt: skip
ANSWERED, INVALID, ERROR = Outcome.ANSWERED, Outcome.INVALID, Outcome.ERROR
RIGHT, WRONG = Served(ANSWERED, 0.1, right=True), Served(ANSWERED, 0.1, right=False)


def pairs(former, canary):
    return [AnswerPair(number, *two) for number, two in enumerate(zip(former, canary, strict=True))]


def answers(*outcomes, latency_s=0.1, right=None):
    return [Served(outcome, latency_s, right) for outcome in outcomes]


def test_a_question_counts_where_the_former_version_answered():
    former = answers(ANSWERED, ERROR, INVALID)
    score = ServedScore.of(pairs(former, answers(ERROR, ERROR, ANSWERED)))
    assert (score.requests, score.errors) == (2, 1)
    assert (score.invalid, score.former_invalid) == (0, 1)


def test_a_graded_question_counts_once_by_its_first_answer():
    asked = [AnswerPair(0, RIGHT, WRONG), AnswerPair(0, RIGHT, RIGHT), AnswerPair(1, WRONG, RIGHT)]
    score = ServedScore.of(asked)
    assert (score.graded, score.right, score.former_right) == (2, 1, 1)
    assert (score.lost, score.won) == (1, 1)


def test_the_served_score_names_each_figure():
    told = str(ServedScore.of([AnswerPair(0, RIGHT, WRONG)]))
    assert told == (
        "1 questions, 0 errors, 0 invalid answers against 0, p99 0.100 s against 0.100 s, exact "
        "match 0 against 1 of 1 (lost 1, won 0, p=0.5000)"
    )


@pytest.mark.parametrize(
    ("canary", "says"),
    [
        ([*[ANSWERED] * 9, ERROR], None),
        ([*[ANSWERED] * 8, ERROR, ERROR], "max_error_share=0.1"),
        ([*[ANSWERED] * 9, INVALID], None),
        ([*[ANSWERED] * 8, INVALID, INVALID], "max_invalid_share=0.1"),
        ([ERROR, ERROR], "max_error_share"),  # ten could not make up for it
        ([ERROR], None),
        ([INVALID, INVALID], None),
    ],
)
def test_errors_and_answers_that_are_none_speak_against_it(canary, says):
    score = ServedScore.of(pairs(answers(*[ANSWERED] * len(canary)), answers(*canary)))
    found = shortfall(score, CONFIG)
    assert (found is None) is (says is None)
    assert says is None or says in found


@pytest.mark.parametrize(("latency_s", "is_slow"), [(0.29, False), (0.31, True)])
def test_a_slow_99th_percentile_speaks_against_it(latency_s, is_slow):
    former, canary = answers(*[ANSWERED] * 10), answers(*[ANSWERED] * 10)
    canary[3] = Served(ANSWERED, latency_s)
    found = shortfall(ServedScore.of(pairs(former, canary)), CONFIG)
    assert ("max_latency_ratio" in (found or "")) is is_slow


@pytest.mark.parametrize(("lost", "goes_back"), [(5, False), (6, True)])
def test_six_answers_lost_and_none_won_go_back(lost, goes_back):
    asked = [AnswerPair(i, RIGHT, WRONG if i < lost else RIGHT) for i in range(20)]
    found = exact_match_shortfall(ServedScore.of(asked), CONFIG)
    assert (found is not None) is goes_back


def test_a_version_that_answers_as_well_does_not_go_back():
    asked = [AnswerPair(i, RIGHT, WRONG) for i in range(5)]
    asked += [AnswerPair(i, WRONG, RIGHT) for i in range(5, 10)]
    assert exact_match_shortfall(ServedScore.of(asked), CONFIG) is None


def test_a_step_is_judged_once_every_graded_question_was_answered():
    score = ServedScore.of(pairs(answers(*[ANSWERED] * 10), answers(*[ANSWERED] * 10)))
    assert missing_answers(score, CONFIG, graded=0) is None
    missing = missing_answers(score, CONFIG, graded=1)
    assert missing == "the former version answered 0 of the 1 questions with accepted answers"


def test_a_step_names_what_the_former_version_left():
    away = Served(ERROR, 0.1, told="HTTP 503: later")
    score = ServedScore.of(pairs([away, *answers(ANSWERED)], answers(ANSWERED, ANSWERED)))
    assert missing_answers(score, CONFIG, graded=0) == (
        "the former version answered 1 of the serving.canary.min_requests=10 questions, and left "
        "1 without an answer (HTTP 503: later)"
    )
    assert str(score).endswith(", 1 left by the former version")


def test_a_long_step_takes_no_more_memory():
    first, later = (
        AnswerPair(0, RIGHT, Served(ANSWERED, 9.0, right=False)),
        AnswerPair(0, RIGHT, RIGHT),
    )
    summed = StepAnswers()
    summed.add([first, *[later] * MOST_LATENCIES])
    tracemalloc.start()
    summed.add(later for _ in range(MOST_LATENCIES))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 10_000
    assert summed.score.requests == 2 * MOST_LATENCIES + 1
    assert summed.score.p99_s == 0.1, "of the last answers"
    assert summed.score.lost == 1, "of the first one"


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_chance_is_that_of_an_exact_binomial_test(lost, won):
    if lost + won == 0:
        assert chance_of_losing(0, 0) == 1
    else:
        expected = binomtest(lost, lost + won, 0.5, alternative="greater").pvalue
        assert math.isclose(chance_of_losing(lost, won), expected, rel_tol=1e-9)


@pytest.mark.parametrize(("count", "place"), [(1, 1), (99, 99), (100, 99), (101, 100), (200, 198)])
def test_the_99th_percentile_is_the_nearest_rank(count, place):
    assert percentile_99(range(1, count + 1)) == place
    assert percentile_99([]) == 0
