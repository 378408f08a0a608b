"""An ensemble of judges: every model answers about each trajectory, and the majority counts."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from espalier.completions import EndpointModel, ModelRefusal, RefusedTextError, Request
from espalier.completions.answering import estimated_tokens
from espalier.config import Criterion, GradingConfig
from espalier.judging.agreement import cohen_kappa, fleiss_kappa
from espalier.judging.rubric import INSTRUCTIONS, Judgement, Transcript, judgement_type, refusing
from espalier.records import EngineError, EspalierError

T = TypeVar("T")
_TOKENS_PER_PRICE = 1_000_000


class JudgementMissingError(EspalierError):
    """Too few judges gave a readable answer: the reward is missing, not 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The combined answers of the judges about one trajectory."""

    score: float
    """Weighted share of the criteria that a majority of the readable answers affirms, 0-1."""
    holds: dict[str, bool]
    """Criterion -> majority answer; a tie is False."""
    votes: dict[str, tuple[int, int]]
    """Criterion -> number of judges who answered no, and yes."""
    reasons: tuple[str, ...]
    """The reasoning of each judge with a readable answer."""
    refusals: tuple[str, ...] = ()
    """The reason for each answer that could not be read."""

    @property
    def passes(self) -> bool:
        """Whether the first criterion, the one about the outcome, holds."""
        return next(iter(self.holds.values()))


@dataclass(slots=True)
class Agreement:
    """Votes counted so far, from which `figures` are computed."""

    votes: dict[str, list[tuple[int, int]]] = field(default_factory=dict[str, list[Any]])
    """Criterion -> one pair of votes for each trajectory that all judges answered about."""
    with_rule: list[tuple[bool, bool]] = field(default_factory=list[tuple[bool, bool]])
    """Pairs of the judges' verdict and the rule's."""
    judged: int = 0
    refusals: int = 0


class JudgeEnsemble:
    """Judges that run on the event loop of their own thread, started by the first question.

    Callers may be on any event loop or on none: connections, rate limits and the cost counted so
    far live as long as the ensemble, which `close`, `with`, or the interpreter's exit ends.
    """

    def __init__(self, config: GradingConfig) -> None:
        self._config = config
        self._answer = judgement_type(config.rubric)
        self._models: list[EndpointModel] = []
        for endpoint in config.endpoints:
            if endpoint.cache is None and config.cache is not None:
                endpoint = endpoint.model_copy(update={"cache": config.cache})
            self._models.append(EndpointModel(endpoint))
        self._agreement = Agreement()
        self._reserved = 0.0
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._open = AsyncExitStack()

    def __enter__(self) -> Self:
        """Return the ensemble; nothing starts before the first question."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the ensemble."""
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread, after waiting for running questions."""
        with self._starting:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._open.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        atexit.unregister(self.close)

    @property
    def rubric(self) -> tuple[Criterion, ...]:
        """The criteria that the judges answer."""
        return self._config.rubric

    @property
    def cost(self) -> float:
        """Cost so far, summed over all models."""
        return sum(model.ledger.cost for model in self._models)

    def verdicts(self, transcripts: Sequence[Transcript]) -> list[Verdict]:
        """Judge several trajectories concurrently and return their verdicts in order.

        Raises:
            JudgementMissingError: no more than half of the judges gave a readable answer.
            EngineError: a server stays away, or the cost limit is reached.
        """
        return self._post(self._all(transcripts)).result()

    async def verdict(self, transcript: Transcript) -> Verdict:
        """Judge one trajectory; can be awaited from any event loop."""
        return await asyncio.wrap_future(self._post(self._judge(transcript)))

    def compare_with_rule(self, verdict: Verdict, *, is_right: bool) -> None:
        """Record the judges' verdict beside the rule's, which is the one that counts."""
        self._agreement.with_rule.append((verdict.passes, is_right))

    def figures(self) -> dict[str, float]:
        """Return Fleiss' kappa by criterion, Cohen's with the rule, refusals and cost so far."""
        seen = self._agreement
        kappas = {f"kappa/{name}": fleiss_kappa(votes) for name, votes in seen.votes.items()}
        known = {name: value for name, value in kappas.items() if value == value}
        rule = cohen_kappa(seen.with_rule)
        if rule == rule:
            known["kappa_with_rule"] = rule
        asked = max(1, seen.judged * len(self._models))
        return known | {"refused_share": seen.refusals / asked, "cost": self.cost}

    def _post(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="espalier-judges", daemon=True
                )
                self._thread.start()
                asyncio.run_coroutine_threadsafe(self._connect(), self._loop).result()
                atexit.register(self.close)
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _connect(self) -> None:
        for model in self._models:
            await self._open.enter_async_context(model)

    async def _all(self, transcripts: Sequence[Transcript]) -> list[Verdict]:
        return list(await asyncio.gather(*(self._judge(one) for one in transcripts)))

    async def _judge(self, transcript: Transcript) -> Verdict:
        request = Request(
            call="judge",
            instructions=INSTRUCTIONS,
            material=transcript,
            answer=self._answer,
            without_policy=transcript.without_policy(),
        )
        price = self._reserve(request)
        try:
            asked = (self._answered(model, request) for model in self._models)
            answers = await asyncio.gather(*asked)
            if not _has_majority(answers):
                found = zip(self._models, answers, strict=True)
                blamed = (self._blamed(model, request, answer) for model, answer in found)
                answers = await asyncio.gather(*blamed)
        finally:
            self._reserved -= price
        return self._counted(answers)

    async def _answered(
        self, model: EndpointModel, request: Request[Judgement]
    ) -> Judgement | ModelRefusal:
        """Return a judge's answer; one that cannot read what the policy wrote says no to all."""
        try:
            return await model.answer(request)
        except RefusedTextError as refused:
            return refusing(self.rubric, str(refused))

    async def _blamed(
        self, model: EndpointModel, request: Request[Judgement], answer: Judgement | ModelRefusal
    ) -> Judgement | ModelRefusal:
        """Return the answer; no to all if only what the policy wrote makes it unreadable.

        An attempt must not escape its score, or end the run, by a text that confuses the judges.
        """
        if not isinstance(answer, ModelRefusal) or not await model.reads_without_policy(request):
            return answer
        return refusing(self.rubric, f"{answer.reason} {answer.detail}".strip())

    def _reserve(self, request: Request[Judgement]) -> float:
        """Reserve and return the highest possible cost of a question.

        Raises:
            EngineError: spent, reserved and this question together exceed the limit.
        """
        limit = self._config.max_cost
        tokens = sum(estimated_tokens(one["content"]) for one in request.messages())
        prices: list[float] = []
        for one in self._config.endpoints:
            dearest = tokens * one.prompt_price + one.max_tokens * one.completion_price
            prices.append(one.asks * dearest / _TOKENS_PER_PRICE)
        price = sum(prices)
        if limit and self.cost + self._reserved + price > limit:
            raise EngineError(
                f"judges: the next question could cost {price:.4f}, {self.cost:.4f} of "
                f"max_cost={limit:g} are spent and {self._reserved:.4f} under way. Raise the limit "
                "and run the same command again; with a cache no question is sent twice"
            )
        self._reserved += price
        return price

    def _counted(self, answers: Sequence[Judgement | ModelRefusal]) -> Verdict:
        read = [one for one in answers if not isinstance(one, ModelRefusal)]
        refused = [one for one in answers if isinstance(one, ModelRefusal)]
        reasons = tuple(f"{one.reason} {one.detail}".strip() for one in refused)
        self._agreement.judged += 1
        self._agreement.refusals += len(refused)
        if not _has_majority(answers):
            raise JudgementMissingError(
                f"judges: {len(refused)} of {len(answers)} gave no answer that can be read "
                f"({'; '.join(reasons)}); an attempt without a majority has no reward. Raise "
                "`asks` or `max_tokens` of the model, or name another"
            )
        said = [one.votes(self.rubric) for one in read]
        votes = {
            one.name: (
                sum(not votes[one.name] for votes in said),
                sum(votes[one.name] for votes in said),
            )
            for one in self.rubric
        }
        if not refused and len(answers) > 1:
            for name, pair in votes.items():
                self._agreement.votes.setdefault(name, []).append(pair)
        holds = {name: yes > no for name, (no, yes) in votes.items()}
        earned = sum(one.weight for one in self.rubric if holds[one.name])
        return Verdict(
            score=earned / sum(one.weight for one in self.rubric),
            holds=holds,
            votes=votes,
            reasons=tuple(one.reasoning for one in read),
            refusals=reasons,
        )


def _has_majority(answers: Sequence[Judgement | ModelRefusal]) -> bool:
    """Return whether more than half of the answers can be read."""
    return 2 * sum(not isinstance(one, ModelRefusal) for one in answers) > len(answers)
