"""Other things that could be done at a step, as the embedded teacher thinks of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal

from espalier.synthesis import plans
from espalier.synthesis.detours import misspelled
from espalier.synthesis.fas.calls import Alternatives, Candidate, StepTold
from espalier.synthesis.fas.plain import plain
from espalier.synthesis.fas.schema import Schema
from espalier.synthesis.observations import hits

_TRIES = 40


def stray_candidates(told: StepTold, schema: Schema, rng: random.Random) -> Alternatives:
    """Up to `told.count` different actions, none of them the one that was taken."""
    found: dict[str, Candidate] = {}
    for thought, action, text in _drawn(told, schema, rng):
        text = plain(text)
        key = f"{action} {text}".casefold()
        if text and key != f"{told.taken.action} {told.taken.text}".casefold():
            found.setdefault(key, Candidate(thought=thought, action=action, text=text))
        if len(found) == told.count:
            break
    return Alternatives(candidates=tuple(found.values()))


def _drawn(
    told: StepTold, schema: Schema, rng: random.Random
) -> Iterator[tuple[str, Literal["search", "answer"], str]]:
    """Thought, kind and text of one action after the other."""
    names = [hit.title for text in told.seen for hit in hits(text) if hit.title]
    shown = [
        value
        for text in told.seen
        for hit in hits(text)
        for line in hit.lines
        for value in line.partition(": ")[2].split("; ")
        if value
    ]
    for _ in range(_TRIES):
        label = rng.choice(schema.labels) if schema.labels else "name"
        match rng.randrange(4):
            case 0:
                name = rng.choice(names or list(schema.names))
                yield label, "search", plans.search_query(name, label)
            case 1 if told.taken.action == "search":
                yield told.taken.thought, "search", misspelled(told.taken.text, rng)
            case 2:
                yield plans.ready_to_answer(), "answer", rng.choice(shown or list(schema.names))
            case _:
                name = rng.choice(shown or list(schema.names))
                yield label, "search", plans.search_query(name, label)
