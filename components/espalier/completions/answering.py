"""Parts shared by all models: the cache of answers, repeated requests, and the cost ledger."""

from __future__ import annotations

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from espalier.completions.request import AnswerT, ModelRefusal, Request, parsed_answer
from espalier.config import EndpointConfig, VllmBatchConfig
from espalier.records import EngineError

_TOKENS_PER_PRICE = 1_000_000
_BYTES_PER_TOKEN = 3
"""Lower than common tokenizers have for English, so that token counts are overestimated."""


@dataclass(slots=True)
class CallUsage:
    """Totals over all requests with the same call name."""

    answers: int = 0
    from_cache: int = 0
    requests: int = 0
    """Requests sent to a server or decoded here, including repeats."""
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """In the currency of the prices in the profile."""


class Ledger:
    """Counts tokens and cost by call name; refuses a request that could exceed the limit."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._usage: dict[str, CallUsage] = defaultdict(CallUsage)
        self._refusals: dict[str, Counter[str]] = defaultdict(Counter)
        self._reserved = 0.0

    @property
    def cost(self) -> float:
        """Cost so far."""
        return sum(usage.cost for usage in self._usage.values())

    def of(self, call: str) -> CallUsage:
        """Return the mutable totals of one call name."""
        return self._usage[call]

    def refused(self, call: str, reason: str) -> None:
        """Count a refused answer."""
        self._refusals[call][reason] += 1

    def reserve(self, prompt_tokens: int) -> float:
        """Reserve and return the highest possible cost of a request of that length.

        Raises:
            EngineError: spent, reserved and this request together exceed the limit.
        """
        limit = self._config.max_cost
        price = self._price(prompt_tokens, self._config.max_tokens)
        if limit and self.cost + self._reserved + price > limit:
            raise EngineError(
                f"{self._config.name}: the next request could cost {price:.4f}, {self.cost:.4f} of "
                f"max_cost={limit} are spent and {self._reserved:.4f} under way. Raise the limit "
                "and run the same command again: answers so far are kept in the cache"
            )
        self._reserved += price
        return price

    def settle(
        self, call: str, reserved: float, prompt_tokens: int, completion_tokens: int
    ) -> None:
        """Release what `reserve` returned, and add the tokens used and their cost to the totals.

        Args:
            call: name of the call, by which the totals are kept.
            reserved: the amount to release.
            prompt_tokens: tokens of the prompt.
            completion_tokens: tokens of the completion.
        """
        self._reserved -= reserved
        usage = self._usage[call]
        usage.prompt_tokens += prompt_tokens
        usage.completion_tokens += completion_tokens
        usage.cost += self._price(prompt_tokens, completion_tokens)

    def as_dict(self) -> dict[str, object]:
        """Return call name -> totals and refusals, for the records of a run."""
        calls = sorted(self._usage.keys() | self._refusals.keys())
        return {
            call: asdict(self._usage[call])
            | {"refusals": dict(sorted(self._refusals[call].items()))}
            for call in calls
        }

    def _price(self, prompt_tokens: int, completion_tokens: int) -> float:
        config = self._config
        prompt_cost = prompt_tokens * config.prompt_price
        return (prompt_cost + completion_tokens * config.completion_price) / _TOKENS_PER_PRICE


def estimated_tokens(text: str) -> int:
    """Return an upper estimate of the number of tokens in a text."""
    return len(text.encode()) // _BYTES_PER_TOKEN + 1


_numbers = itertools.count()


class CachedReply(BaseModel, frozen=True, extra="forbid"):
    """The body of a reply together with the key of its request."""

    key: str
    body: str


class AnswerCache:
    """Replies on disk, one file each (`ab/abcdef....json`); processes may share the folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, key: str) -> bytes | None:
        """Return the body stored under `key`; None if the file is missing or damaged."""
        try:
            kept = CachedReply.model_validate_json(self._path(key).read_bytes(), strict=True)
        except (FileNotFoundError, ValidationError):
            return None
        return kept.body.encode() if kept.key == key else None

    def put(self, key: str, body: bytes) -> None:
        """Store a body; written by a rename, so that a kill leaves no partial file."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}-{next(_numbers)}.partial")
        try:
            text = body.decode()
        except UnicodeDecodeError:
            text = ""  # which is refused as an answer
        partial.write_text(CachedReply(key=key, body=text).model_dump_json(), "utf-8")
        partial.replace(path)

    def _path(self, key: str) -> Path:
        return self._directory / key[:2] / f"{key}.json"


ModelConfig = EndpointConfig | VllmBatchConfig

Send = Callable[[Request[Any], int], Awaitable[bytes]]
"""Maps a request and the number of the try, from 0, to the body of a chat completion."""

_SETTINGS = {"model", "temperature", "max_tokens", "response_format"}


class CachedAnswers:
    """Answers requests from the cache, or by sending them.

    An unreadable answer is requested again, up to `asks` times in all. The last reply is cached
    whether readable or not, so that a replay refuses what the first run refused.
    """

    def __init__(self, config: ModelConfig, ledger: Ledger, send: Send) -> None:
        self._config = config
        self._cache = AnswerCache(config.cache) if config.cache else None
        self._ledger = ledger
        self._send = send

    async def answer(self, request: Request[AnswerT]) -> AnswerT | ModelRefusal:
        """Return the answer to a request, or the reason why there is none.

        Raises:
            EngineError: sending failed, or only the cache may be used and does not hold the answer.
        """
        key = request.key(answer_settings(self._config))
        usage = self._ledger.of(request.call)
        body = self._cache.get(key) if self._cache else None
        if body is not None:
            usage.from_cache += 1
            answer = parsed_answer(body, request.answer)
        elif self._config.replay_only:
            raise EngineError(
                f"{self._config.cache}: holds no answer of {request.call} {key[:12]}, and "
                "replay_only=true sends nothing. Run once without it"
            )
        else:
            body, answer = await self._asked(request)
            if self._cache:
                self._cache.put(key, body)
        usage.answers += 1
        if isinstance(answer, ModelRefusal):
            self._ledger.refused(request.call, answer.reason)
        return answer

    async def _asked(self, request: Request[AnswerT]) -> tuple[bytes, AnswerT | ModelRefusal]:
        body, answer = b"", ModelRefusal("empty")
        for ask in range(self._config.asks):
            body = await self._send(request, ask)
            answer = parsed_answer(body, request.answer)
            if not isinstance(answer, ModelRefusal):
                break
        return body, answer


def answer_settings(config: ModelConfig) -> Mapping[str, object]:
    """Return the settings that an answer depends on; an in-process model has url "".

    Of several servers the first stands for all: another one behind it changes no answer.
    """
    urls = config.urls if isinstance(config, EndpointConfig) else ()
    return {"url": urls[0] if urls else "", **config.model_dump(include=_SETTINGS)}


def seed_of(request: Request[Any], ask: int, asks: int) -> int:
    """Return a distinct seed per sample and try: with equal seeds a server may repeat itself."""
    return request.sample * asks + ask
