"""What the tiny policy learns to read from: visits whose ids are redrawn every time."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from espalier.environments.reading import Log
from espalier.records import FinalAnswer, Task, ToolCalls, action_of
from espalier.records.trajectory import Trajectory
from espalier_environments.shop.catalogue import Product
from espalier_environments.shop.made_catalogue import MADE_ASIN, drawn_asin
from espalier_environments.shop.teaching import open_product, search_for
from espalier_environments.shop.visit import results_page

_TEXTS = 400
"""Number of visits for training the tokenizer."""
_ATTEMPTS = 100
_OPENINGS_SHARE = 0.5
_MOST_OPENED = 4
_MOST_PAGES = 17
"""Largest number of pages that an invented page of results shows."""


class VisitReading:
    """Demonstrations of goals that are in no task, under prompts in random order.

    Every other log instead opens several products of a page, in the order of the prompt: ids are
    only a few words of a visit, and with visits alone no id was copied after 420 steps.
    """

    def __init__(
        self,
        products: Sequence[Product],
        page_size: int,
        draw_task: Callable[[random.Random], Task],
        demonstrate: Callable[[Task], Trajectory | None],
    ) -> None:
        """Store where visits come from.

        Args:
            products: products of the training split.
            page_size: number of products on a page of results.
            draw_task: draws a goal for a product of the training split.
            demonstrate: returns the teacher's visit; None if it found nothing.
        """
        self._products = products
        self._page_size = page_size
        self._draw_task = draw_task
        self._demonstrate = demonstrate

    def write(self, rng: random.Random) -> Log:
        """Return one log: a visit, or a list of opened products."""
        if rng.random() < _OPENINGS_SHARE:
            return self._openings(rng)
        task, trajectory = self._drawn(rng)
        behind = trajectory.messages[len(task.prompt) :]
        pieces = [
            action_of(message) if message.role == "assistant" else message.content
            for message in behind
        ]

        # the wish's words in random order, each option with its value
        wish, *others = task.question.split(" , ")
        parts = [*wish.split(), *others]
        rng.shuffle(parts)
        return Log(" ".join(parts), tuple(_renumbered(rng, pieces)))

    def _openings(self, rng: random.Random) -> Log:
        """Return a log that opens products of an invented page, in the order of the prompt."""
        listed = [
            replace(product, asin=_other_asin(rng, product.asin))
            for product in rng.sample(self._products, min(self._page_size, len(self._products)))
        ]
        wanted = rng.sample(listed, min(_MOST_OPENED, len(listed)))
        pieces: list[ToolCalls | FinalAnswer | str] = [search_for(wanted[0].record.query)]
        pieces.append(results_page(listed, 1, rng.randint(1, _MOST_PAGES)))
        for product in wanted:
            pieces += [open_product(product), f"price {product.price_tag}"]
        pieces.append(ToolCalls.one("buy", {}, "buy"))
        return Log(" , ".join(product.record.title for product in wanted), tuple(pieces))

    def texts(self, rng: random.Random) -> Iterator[str]:
        """Yield the thoughts, messages and calls of random visits."""
        for _ in range(_TEXTS):
            _, trajectory = self._drawn(rng)
            for message in trajectory.messages:
                yield from filter(None, (message.thought, message.content))
                for call in message.tool_calls:
                    yield " ".join((call.name, *map(str, call.arguments.values())))

    def _drawn(self, rng: random.Random) -> tuple[Task, Trajectory]:
        for _ in range(_ATTEMPTS):
            task = self._draw_task(rng)
            if (trajectory := self._demonstrate(task)) is not None:
                return task, trajectory
        raise AssertionError(f"the teacher found nothing in {_ATTEMPTS} goals of a made catalogue")


def _other_asin(rng: random.Random, asin: str) -> str:
    """Return a random id of the same length."""
    found = MADE_ASIN.fullmatch(asin)
    assert found is not None, "a product of a made catalogue has such an id"
    return drawn_asin(rng, len(found[2]))


def _renumbered(
    rng: random.Random, pieces: Sequence[ToolCalls | FinalAnswer | str]
) -> Iterator[ToolCalls | FinalAnswer | str]:
    """Yield the pieces with other product ids, so that ids are read, not learned."""
    drawn: dict[str, str] = {}

    def other(match: re.Match[str]) -> str:
        return drawn.setdefault(match[0], _other_asin(rng, match[0]))

    for piece in pieces:
        if isinstance(piece, str):
            yield MADE_ASIN.sub(other, piece)
        elif isinstance(piece, ToolCalls):
            (call,) = piece.calls
            arguments = {
                name: MADE_ASIN.sub(other, str(value)) for name, value in call.arguments.items()
            }
            yield ToolCalls.one(call.name, arguments, MADE_ASIN.sub(other, piece.thought or ""))
        else:
            yield piece
