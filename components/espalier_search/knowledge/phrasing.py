"""Noun phrases for a user's relations, by the shape of the label and the kind of the object.

"born in" and a town give "the town in which {x} was born"; "birth year" gives "the birth year of
{x}". A wrong guess is awkward English, and still asks for the same thing.
"""

from __future__ import annotations

UNTYPED = "entity"
"""Kind of an entity for which no row gives a type."""
PEOPLE = frozenset({
    "person", "people", "human", "man", "woman", "author", "artist", "actor", "architect",
    "director", "doctor", "engineer", "king", "leader", "minister", "musician", "painter",
    "player", "poet", "politician", "president", "queen", "scientist", "singer", "student",
    "teacher", "writer",
})  # fmt: skip
AMOUNTS = frozenset({"number", "count", "amount", "quantity", "integer"})
TIMES = frozenset({"year", "date", "day", "month", "century", "decade"})

_PREPOSITIONS = frozenset({"in", "of", "by", "at", "from", "to", "for", "with", "on", "into"})
_COMPLETED = frozenset({
    "born", "built", "composed", "created", "discovered", "founded", "invented", "written",
})  # fmt: skip
"""Participles of single events, which take "was" ("was built in"); others take "is" ("is known
for")."""
_ACTIVE = frozenset({
    "appeared", "belonged", "came", "competed", "died", "fell", "fought", "graduated", "grew",
    "lived", "moved", "participated", "played", "resided", "ruled", "served", "starred",
    "studied", "went", "worked",
})  # fmt: skip
"""Past tenses that take no "was"."""
_PAST = frozenset({
    "bought", "built", "drew", "found", "gave", "knew", "led", "made", "sang", "sold", "taught",
    "taken", "took", "won", "wrote",
})  # fmt: skip
"""Irregular past tenses that take an object."""
_NO_VERBS = frozenset({
    "address", "business", "headquarters", "news", "series", "species",
})  # fmt: skip


def default_phrasings(label: str, object_kind: str, *, functional: bool) -> tuple[str, ...]:
    """Return noun phrases around "{x}" for a relation that has no phrasings of its own."""
    first, *_, last = label.split() if " " in label else (label, label)
    thing = "thing" if object_kind == UNTYPED else object_kind
    if " " in label and last in _PREPOSITIONS:
        return _with_preposition(label, thing, object_kind)
    if _is_verb(label, object_kind, functional=functional):
        return (f"the {thing} that {{x}} {label}", f"the {thing} which {{x}} {label}")
    if object_kind in AMOUNTS and first == last and label.endswith("s"):
        return (f"the number of {label} of {{x}}", f"the number of {label} in {{x}}")
    if functional:
        return (f"the {label} of {{x}}", f"the {label} that {{x}} has", f"{{x}}'s {label}")
    return (f"one {label} of {{x}}", f"something {{x}} has as {label}", f"any {label} of {{x}}")


def _with_preposition(label: str, thing: str, object_kind: str) -> tuple[str, ...]:
    """Phrase a label with a preposition: "born in" gives "the town in which {x} was born"."""
    *said, preposition = label.split()

    # the words before it as a predicate: "born" gives "was born", "lives" stays
    first, clause = said[0], " ".join(said)
    is_active = first in _ACTIVE or (first.endswith("s") and first not in _NO_VERBS)
    if not is_active and first not in ("had", "are", "were"):  # "is", "was", "has" end in "s"
        is_past = object_kind in TIMES or first in _COMPLETED
        clause = f"was {clause}" if is_past else f"is {clause}"

    ended = f"the {thing} that {{x}} {clause} {preposition}"
    if object_kind in PEOPLE:
        return (f"the {thing} {preposition} whom {{x}} {clause}", ended)
    return (f"the {thing} {preposition} which {{x}} {clause}", ended)


def _is_verb(label: str, object_kind: str, *, functional: bool) -> bool:
    """Return whether a one-word label is a verb with an object, such as "plays" or "wrote"."""
    if " " in label or object_kind in AMOUNTS or label in _NO_VERBS:
        return False
    if label in _PAST or label.endswith("ed"):
        return True
    # "members" and "plays" look alike, but a relation with a single object has no plural label
    return functional and label.endswith("s") and not label.endswith(("ss", "us", "is"))
