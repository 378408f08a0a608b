"""The served score of real endpoints: one that answers as well, and ones that do not."""

import asyncio

import pytest

from espalier.config import CanaryConfig
from espalier.rewards.answers import normalize_answer
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.engines.lockstep import lockstep_engine
from espalier.serving.asking import PLAIN_QUESTIONS, Address, Asker, Question
from espalier.serving.score import ServedScore, exact_match_shortfall, shortfall
from espalier.serving.served_policy import PolicyStops
from tests.factories.tiny import damaged, retouched, tiny_policy, tiny_tokenizer
from tests.integration.serving.live import PacedEngine, listening_endpoint

NAME = "models:/tiny/1"
PROMPTS = [
    f"{word} {other}"
    for word in ("Lyon", "France", "currency", "country")
    for other in ("of", "in", "and", "answer", "lookup")
]
CONFIG = CanaryConfig(min_requests=12, questions_at_once=4, max_tokens=12, timeout_s=60)
LENIENT = CONFIG.model_copy(update={"latency_slack_s": 60.0})


def engine_of(policy):
    return lockstep_engine(policy.model, PolicyStops(frozenset()), max_rows=8)


@pytest.fixture(scope="module")
def former():
    with listening_endpoint(engine_of(tiny_policy())) as client:
        yield Address(str(client.base_url).rstrip("/"), NAME)


@pytest.fixture(scope="module")
def questions():
    """What the former version says is right, as far as it says anything."""

    async def said(engine, prompt):
        ids = tuple(tiny_tokenizer().encode(prompt, add_special_tokens=False))
        session = await engine.open(ids, Sampling(temperature=0.0, seed=0))
        completion = await session.sample(max_tokens=12)
        session.close()
        return tiny_tokenizer().decode(completion.token_ids)

    async def all_said():
        engine = engine_of(tiny_policy())
        async with engine.serving():
            return {prompt: await said(engine, prompt) for prompt in PROMPTS}

    answers = asyncio.run(all_said())
    told = {prompt: text for prompt, text in answers.items() if normalize_answer(text)}
    return [Question({"prompt": prompt}, (text,)) for prompt, text in told.items()][:12]


def score_of(engine, former, questions, config=LENIENT):
    asker = Asker(config, questions)
    with listening_endpoint(engine) as client:
        canary = Address(str(client.base_url).rstrip("/"), NAME)
        pairs = [pair for _ in range(3) for pair in asker.ask(former, canary)]
    return ServedScore.of(pairs)


def test_other_bytes_with_equal_answers_pass(former, questions):
    score = score_of(engine_of(retouched(tiny_policy(), 1)), former, questions)
    assert (score.requests, score.graded) == (12, 12)
    assert (score.right, score.former_right) == (12, 12)
    assert shortfall(score, LENIENT) is None
    assert exact_match_shortfall(score, LENIENT) is None


def test_damaged_weights_fall_short_in_exact_match(former, questions):
    score = score_of(engine_of(damaged(tiny_policy())), former, questions)
    assert (score.errors, score.invalid) == (0, 0)
    assert score.right < score.former_right
    assert "lost" in exact_match_shortfall(score, LENIENT)


def test_an_engine_that_breaks_falls_short_in_errors(former, questions):
    score = score_of(PacedEngine(breaks=True), former, questions)
    assert "HTTP 500" in shortfall(score, LENIENT)


def test_an_engine_that_crawls_falls_short_in_latency(former):
    crawling = PacedEngine(rows=8, token_s=0.5)
    score = score_of(crawling, former, PLAIN_QUESTIONS, CONFIG)
    assert score.p99_s > 6.0
    assert "max_latency_ratio" in shortfall(score, CONFIG)


def test_answers_that_come_too_late_are_errors(former, questions):
    hasty = LENIENT.model_copy(update={"timeout_s": 1.0, "questions_at_once": 2})
    score = score_of(PacedEngine(rows=8, token_s=0.5), former, questions, hasty)
    assert score.errors == score.requests
    assert "ReadTimeout" in score.last_error
