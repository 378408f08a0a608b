"""Plans gone wrong, as a planner's do: a hop forgotten, swapped or another, a name mistaken."""

from __future__ import annotations

import random

from espalier.synthesis.detours import misspelled
from espalier.synthesis.fas.plain import plain
from espalier.synthesis.fas.schema import Schema

Labels = tuple[str, ...]


def mistaken(name: str, labels: Labels, schema: Schema, rng: random.Random) -> tuple[str, Labels]:
    """Name and labels with one mistake; a chain of one has no hop to forget or to swap."""
    recipes = ["another_line", "misspelled", "another_name"]
    if len(labels) > 1:
        recipes += ["forgotten", "swapped"] * 2
    place = rng.randrange(len(labels))
    match rng.choice(recipes):
        case "forgotten":
            return name, labels[:place] + labels[place + 1 :]
        case "swapped":
            first = min(place, len(labels) - 2)
            pair = labels[first + 1], labels[first]
            return name, labels[:first] + pair + labels[first + 2 :]
        case "another_line":
            others = [label for label in schema.labels if label != labels[place]]
            other = rng.choice(others or list(labels))
            return name, (*labels[:place], other, *labels[place + 1 :])
        case "misspelled":
            return misspelled(name, rng), labels
        case _:
            return plain(rng.choice(schema.names)) or name, labels
