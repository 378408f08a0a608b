"""Demonstrations under invented names, so that plans depend only on the wording of a question.

A policy trained on few entities learns from a name what may be asked about it: for a country that
it knows it searches the currency, for an unknown one first the country. If the names are exchanged
throughout a demonstration, in the question, the searches, the results and the answer, only the
wording is left to learn from.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from espalier.records import Message, Task, ToolCall
from espalier.records.folding import SpelledNames, folded_name, words
from espalier.records.trajectory import Trajectory
from espalier_search.knowledge.search import NO_RESULTS
from espalier_search.search_qa.invented_names import InventedNames
from espalier_search.synthesis.search_wording import shown_hits

_ARTICLE = re.compile(r"^(?:the|an?)\s+", re.IGNORECASE)


class NameExchange:
    """Exchanges the names that a demonstration passes through for invented ones."""

    def __init__(self, names: Sequence[str], share: float) -> None:
        """Prepare the invented names.

        Args:
            names: names from which new ones are invented.
            share: share of the names that are exchanged, 0-1.
        """
        self._names = InventedNames(names)
        self._share = share

    def __call__(
        self, task: Task, trajectory: Trajectory, rng: random.Random
    ) -> tuple[Task, Trajectory]:
        """Return the task and its demonstration with other names.

        Names are those of the route, or without one the found titles and the answer. Nothing
        changes if there is a detour, which misspells a name and would no longer match it. Nothing
        changes either if the policy would have to write a word that it has not read, because a
        teacher wrote part of a name, or an answer in its own words.
        """
        if trajectory.detour:
            return task, trajectory
        route = task.extra.get("entities")
        names = map(str, route) if isinstance(route, list) else _found_names(trajectory)
        unique = [name for name in dict.fromkeys(names) if folded_name(name)]
        taken = set(map(folded_name, unique))
        others: dict[str, str] = {}
        for name in unique:
            if rng.random() >= self._share:
                continue
            others[name] = self._names.apart_from(taken, name, rng)
            if route is None:  # queries are then the folded words of the question
                others.setdefault(folded_name(name), folded_name(others[name]))
        if not others:
            return task, trajectory
        exchange = _exchange(others)
        messages = tuple(map(exchange, trajectory.messages))
        if not _unread_words(messages) <= _unread_words(trajectory.messages):
            return task, trajectory
        renamed = task.model_copy(update={"prompt": tuple(map(exchange, task.prompt))})
        return renamed, replace(trajectory, messages=messages)


def _found_names(trajectory: Trajectory) -> list[str]:
    """Return the titles that the searches found, and the answer."""
    found = [
        hit.title
        for message in trajectory.messages
        if message.role == "tool" and message.content != NO_RESULTS
        for hit in shown_hits(message.content)
    ]
    return [_ARTICLE.sub("", name) for name in (*found, trajectory.answer or "")]


def _unread_words(messages: Sequence[Message]) -> set[str]:
    """Return the words that the policy writes before it has read them."""
    read: set[str] = set()
    unread: set[str] = set()
    for message in messages:
        arguments = (call.arguments.values() for call in message.tool_calls)
        texts = (message.thought or "", message.content, *map(str, chain.from_iterable(arguments)))
        found = set(words(" ".join(texts)))
        if message.role == "assistant":
            unread |= found - read
        else:
            read |= found
    return unread


def _exchange(others: Mapping[str, str]) -> Callable[[Message], Message]:
    found = SpelledNames(others)

    def in_text(text: str) -> str:
        return found.replaced(text, lambda name: others[name])

    def in_message(message: Message) -> Message:
        calls: list[ToolCall] = []
        for call in message.tool_calls:
            arguments = {
                name: in_text(value) if isinstance(value, str) else value
                for name, value in call.arguments.items()
            }
            calls.append(call.model_copy(update={"arguments": arguments}))
        changed = {"content": in_text(message.content), "tool_calls": tuple(calls)}
        if message.thought is not None:
            changed["thought"] = in_text(message.thought)
        return message.model_copy(update=changed)

    return in_message
