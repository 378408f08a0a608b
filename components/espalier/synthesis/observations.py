"""Reading an observation as the teacher does: titles and lines, as the search tool shows them."""

from __future__ import annotations

from typing import NamedTuple

from espalier.knowledge.folding import folded_name

HIT_SEPARATOR = " || "
LINE_SEPARATOR = " | "
VALUE_SEPARATOR = "; "


class Seen(NamedTuple):
    """One hit of an observation."""

    title: str
    lines: tuple[str, ...]


def hits(observation: str) -> list[Seen]:
    """The hits that an observation shows, best first."""
    found = []
    for text in observation.split(HIT_SEPARATOR):
        title, *lines = text.split(LINE_SEPARATOR)
        found.append(Seen(title.strip(), tuple(line.strip() for line in lines)))
    return found


def values(observation: str, title: str, label: str) -> tuple[str, ...] | None:
    """What the line `label` lists in the hit titled `title`; None where it is not shown."""
    wanted, prefix = folded_name(title), f"{label}: "
    for hit in hits(observation):
        if folded_name(hit.title) != wanted:
            continue
        for line in hit.lines:
            if line.startswith(prefix):
                return tuple(line[len(prefix) :].split(VALUE_SEPARATOR))
    return None
