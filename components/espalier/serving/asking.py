"""Asks OpenAI-compatible servers of two versions the same questions, side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from espalier.config import CanaryConfig
from espalier.records import ServingError
from espalier.rewards.answers import exact_match
from espalier.serving.score import AnswerPair, Outcome, Served

_MAX_TOLD = 200
"""Characters of a server's answer that an error quotes."""
MAX_TRIES = 3
"""Times that a question is asked which the former version leaves without an answer."""
_ENDS = frozenset({"stop", "length", "tool_calls"})
"""`finish_reason` of an answer that came to its end; OpenAI has "content_filter" besides."""


class Question(NamedTuple):
    """A question in the fields of OpenAI's API, and the answers that are right."""

    asked: dict[str, Any]
    """`prompt` or `messages`."""
    answers: tuple[str, ...] = ()
    """Empty where no answer is known to be right."""

    @property
    def route(self) -> str:
        """Where it is asked."""
        return "/v1/chat/completions" if "messages" in self.asked else "/v1/completions"


PLAIN_QUESTIONS = tuple(
    Question({"messages": [{"role": "user", "content": text}]})
    for text in (
        "What is 7 times 8?",
        "Name a city in France.",
        "Which month comes after March?",
        "Write one sentence about rivers.",
        "Is ice warmer than steam?",
        "Count from one to five.",
        "What is the opposite of early?",
        "Spell the word house.",
    )
)
"""Asked where `serving.canary.questions` names no file; no answer counts as right or wrong."""


class Address(NamedTuple):
    """Where a version is asked, and by which name of it."""

    url: str
    name: str


def questions_of(config: CanaryConfig) -> tuple[Question, ...]:
    """The questions of `serving.canary.questions`, or the plain ones.

    Raises:
        ServingError: the file cannot be read, holds no question, or a line is none.
    """
    if config.questions is None:
        return PLAIN_QUESTIONS
    try:
        lines = config.questions.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ServingError(
            f"{config.questions}: the questions of serving.canary cannot be read ({error})"
        ) from error
    found = tuple(
        _question(line, config.questions, number)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    )
    if not found:
        raise ServingError(f"{config.questions}: there is no question in it; write one a line")
    return found


def _question(line: str, path: Path, number: int) -> Question:
    try:
        given: Any = json.loads(line)
    except ValueError as error:
        raise ServingError(f"{path}, line {number}: is no JSON ({error})") from error
    keys = set(given) if isinstance(given, dict) else set()
    answers = given.get("answers", []) if keys else []
    is_known = keys - {"answers"} in ({"prompt"}, {"messages"})
    if (
        not is_known
        or not isinstance(answers, list)
        or not all(isinstance(answer, str) for answer in answers)
    ):
        raise ServingError(
            f'{path}, line {number}: write {{"prompt": "...", "answers": ["..."]}}, or "messages" '
            "in the place of the prompt; answers may be left out"
        )
    return Question({key: given[key] for key in keys - {"answers"}}, tuple(answers))


class Asker:
    """Asks two versions the same questions at one step, and times their answers.

    A question that the former version leaves without an answer is asked again once every other one
    was asked, `MAX_TRIES` times in all, and then set aside: it counts for nobody.
    """

    def __init__(
        self,
        config: CanaryConfig,
        questions: Sequence[Question],
        key: str | None = None,
        *,
        verify: bool = True,
    ) -> None:
        """Ask these questions.

        Args:
            config: how long an answer may be and take, and how many are asked at once.
            questions: asked in turn, again and again.
            key: API key, where the servers want one.
            verify: whether certificates are checked.
        """
        self._config = config
        self._questions = questions
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._verify = verify
        self._tries = [0] * len(questions)
        """How often each question was asked."""
        self._answered: set[int] = set()
        """Questions that the former version answered."""

    @property
    def graded(self) -> int:
        """Questions with accepted answers, without those that were set aside."""
        return sum(
            bool(question.answers) and not self._is_set_aside(number)
            for number, question in enumerate(self._questions)
        )

    def ask(self, former: Address, canary: Address) -> list[AnswerPair]:
        """Ask both the next questions, each question at the same time."""
        at_once = self._config.questions_at_once
        numbers = self._next(at_once)
        timeout_s = self._config.timeout_s
        with (
            httpx2.Client(timeout=timeout_s, trust_env=False, verify=self._verify) as http,
            ThreadPoolExecutor(max_workers=2 * at_once) as threads,
        ):
            asked = [
                [
                    threads.submit(self._served, http, self._questions[number], address)
                    for address in (former, canary)
                ]
                for number in numbers
            ]
            pairs = [
                AnswerPair(number, *(served.result() for served in pair))
                for number, pair in zip(numbers, asked, strict=True)
            ]
        for pair in pairs:
            self._tries[pair.question] += 1
            if pair.former.outcome is not Outcome.ERROR:
                self._answered.add(pair.question)
        return pairs

    def _next(self, count: int) -> list[int]:
        """Those that miss an answer first, then those that were asked least often."""
        order = sorted(
            range(len(self._questions)),
            key=lambda number: (not self._is_missing(number), self._tries[number]),
        )
        return [order[i % len(order)] for i in range(count)]

    def _is_missing(self, number: int) -> bool:
        return number not in self._answered and self._tries[number] < MAX_TRIES

    def _is_set_aside(self, number: int) -> bool:
        return number not in self._answered and self._tries[number] >= MAX_TRIES

    def _served(self, http: httpx2.Client, question: Question, address: Address) -> Served:
        body = {
            "model": address.name,
            "max_tokens": self._config.max_tokens,
            "temperature": 0.0,
            **question.asked,
        }
        began_s = time.perf_counter()
        try:
            answer = http.post(f"{address.url}{question.route}", json=body, headers=self._headers)
        except httpx2.HTTPError as error:
            told = f"{address.url}: {type(error).__name__}"
            return Served(Outcome.ERROR, time.perf_counter() - began_s, _graded(question), told)
        latency_s = time.perf_counter() - began_s
        if answer.status_code != httpx2.codes.OK:
            told = f"HTTP {answer.status_code}: {answer.text[:_MAX_TOLD]}"
            return Served(Outcome.ERROR, latency_s, _graded(question), told)
        text = _answer_text(answer, self._config.max_tokens)
        if text is None:
            return Served(Outcome.INVALID, latency_s, _graded(question))
        right = exact_match(text, question.answers) if question.answers else None
        return Served(Outcome.ANSWERED, latency_s, right)


def _graded(question: Question) -> bool | None:
    """No answer is a wrong one, where answers are right or wrong."""
    return False if question.answers else None


def _answer_text(answer: httpx2.Response, max_tokens: int) -> str | None:
    """The text of a valid answer; a call of a tool has none."""
    try:
        body: Any = answer.json()
        (choice,) = body["choices"]
        num_tokens = body["usage"]["completion_tokens"]
        text = choice["text"] if "text" in choice else choice["message"]["content"] or ""
    except (ValueError, KeyError, TypeError):
        return None
    is_whole = choice.get("finish_reason") in _ENDS and isinstance(text, str)
    is_counted = isinstance(num_tokens, int) and 1 <= num_tokens <= max_tokens
    return text if is_whole and is_counted else None
