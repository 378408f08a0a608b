"""A stream towards clients that behave as no library does."""

import asyncio
import time
from contextlib import ExitStack, asynccontextmanager

import pytest

from espalier.records import EngineError
from espalier.rollout.engines.engine import Completion, EngineCounters, Sampling
from espalier.serving.answering import Answering, StreamedAnswer
from espalier.serving.answers import AnswerShape
from espalier.serving.choice import SamplingOrder
from espalier.serving.engine_thread import EngineThread
from espalier.serving.metrics import Gauges, Metrics
from espalier.serving.planning import AnswerPlan
from espalier.serving.served_policy import ServedPolicy
from espalier.serving.source import Source
from espalier.wire.requests import CompletionRequest
from tests.factories.tiny import tiny_tokenizer


class OneToken:
    """An engine whose sessions write the same token as often as they are asked."""

    policy_version = 0
    counters = EngineCounters()
    closed = 0

    @asynccontextmanager
    async def serving(self):
        yield

    async def open(self, prompt_ids, sampling):
        return self

    async def sample(self, *, max_tokens):
        await asyncio.sleep(0)
        return Completion((300,) * max_tokens, (-1.0,) * max_tokens, stopped=False)

    def close(self):
        self.closed += 1


def order(max_tokens):
    sampling = Sampling(temperature=1.0, seed=0)
    return SamplingOrder(prompt_ids=(20,), sampling=sampling, max_tokens=max_tokens, in_pieces=True)


def answering(engine, writer, metrics, *, timeout_s):
    planned = AnswerPlan(((20,),), (order(5),))
    source = Source(names=("tiny",), created=0, described={})
    policy = ServedPolicy(
        source=source, tokenizer=tiny_tokenizer(), engine=engine, vocabulary=400, context=64
    )
    asked = CompletionRequest(model="tiny", prompt="x", stream=True)
    shape = AnswerShape(asked, planned, policy, answer_id="a", created=0)
    began_s = time.perf_counter()
    return Answering(planned, shape, tiny_tokenizer(), writer, metrics, began_s, timeout_s)


def test_a_client_that_never_reads_loses_its_place():
    engine, metrics, places, given_back = OneToken(), Metrics(), ExitStack(), []
    places.callback(given_back.append, "place")
    writer = EngineThread(engine)
    writer.start()

    async def never(*_):
        await asyncio.Event().wait()

    async def stream():
        answer = answering(engine, writer, metrics, timeout_s=0.05)
        await StreamedAnswer(answer, places, set(), "/v1/completions")({}, never, never)

    asyncio.run(stream())
    writer.stop()
    assert given_back == ["place"]
    assert 'status="499"' in metrics.text(Gauges(1, 0, 0, 0))


def test_stopping_the_engine_ends_what_is_being_written():
    engine = OneToken()
    writer = EngineThread(engine)
    writer.start()

    async def write():
        async for _ in writer.write(order(10**9)):
            await asyncio.to_thread(writer.stop)

    with pytest.raises(EngineError, match="stopped"):
        asyncio.run(write())
    assert engine.closed == 1
    assert writer.failure is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_cannot_start_is_an_error():
    class Broken(OneToken):
        @asynccontextmanager
        async def serving(self):
            raise RuntimeError("no memory")
            yield

    writer = EngineThread(Broken())
    with pytest.raises(EngineError, match="no memory"):
        writer.start()
