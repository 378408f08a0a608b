"""The parts of functions in generated repositories: steps, each a phrase and the line it means.

    price , times count , less 3 , at least 0          the docstring
    total = price                                       its lines
    total *= count
    total -= 3
    total = max(total, 0)
    return total

Every line is described by a phrase, so that a function that contradicts its docstring is wrong in
one place, which a reader of both can correct.
"""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

from espalier_environments.software_repair.config import Domain

ValueKind = Literal["number", "rows", "text"]
Operand = Literal["", "number", "any", "small"]


class Step(NamedTuple):
    """A phrase and its line; `{v}` is the variable that it changes, `{x}` an operand."""

    phrase: str
    line: str
    operand: Operand
    """"any" is a parameter or a number; "number" and "small" (1 to 4) are literals."""


class Ending(NamedTuple):
    """The end of a function."""

    phrase: str
    lines: tuple[str, ...]
    """More than one if the function ends with a branch."""
    operand: Operand = ""


STEPS: dict[ValueKind, tuple[Step, ...]] = {
    "number": (
        Step("plus {x}", "{v} += {x}", "any"),
        Step("less {x}", "{v} -= {x}", "any"),
        Step("times {x}", "{v} *= {x}", "any"),
        Step("shared by {x}", "{v} //= {x}", "number"),
        Step("at most {x}", "{v} = min({v}, {x})", "any"),
        Step("at least {x}", "{v} = max({v}, {x})", "any"),
        Step("left over {x}", "{v} %= {x}", "number"),
        Step("gap to {x}", "{v} = abs({v} - {x})", "any"),
        Step("taken from {x}", "{v} = {x} - {v}", "any"),
    ),
    "rows": (
        Step("first {x}", "{v} = {v}[:{x}]", "small"),
        Step("without first {x}", "{v} = {v}[{x}:]", "small"),
        Step("last {x}", "{v} = {v}[-{x}:]", "small"),
        Step("every {x}", "{v} = {v}[::{x}]", "small"),
        Step("in order", "{v} = sorted({v})", ""),
        Step("backwards", "{v} = {v}[::-1]", ""),
        Step("each plus {x}", "{v} = [n + {x} for n in {v}]", "any"),
        Step("each times {x}", "{v} = [n * {x} for n in {v}]", "any"),
        Step("those above {x}", "{v} = [n for n in {v} if n > {x}]", "any"),
        Step("those below {x}", "{v} = [n for n in {v} if n < {x}]", "any"),
    ),
    "text": (
        Step("first {x}", "{v} = {v}[:{x}]", "small"),
        Step("without first {x}", "{v} = {v}[{x}:]", "small"),
        Step("last {x}", "{v} = {v}[-{x}:]", "small"),
        Step("every {x}", "{v} = {v}[::{x}]", "small"),
        Step("in capitals", "{v} = {v}.upper()", ""),
        Step("in small letters", "{v} = {v}.lower()", ""),
        Step("backwards", "{v} = {v}[::-1]", ""),
        Step("repeated {x}", "{v} = {v} * {x}", "small"),
        Step("wide {x}", "{v} = {v}.center({x})", "number"),
        Step("with {a} for {b}", "{v} = {v}.replace({b}, {a})", ""),
    ),
}
"""`{a}` and `{b}` are further parameters of the function, which are texts too."""

ENDINGS: dict[ValueKind, tuple[Ending, ...]] = {
    "number": (
        Ending("", ("return {v}",)),
        Ending("", ("return {v}",)),
        Ending("zero below {x}", ("if {v} < {x}:", "    return 0", "return {v}"), "number"),
        Ending("zero above {x}", ("if {v} > {x}:", "    return 0", "return {v}"), "number"),
    ),
    "rows": (
        Ending("", ("return {v}",)),
        Ending("total", ("return sum({v})",)),
        Ending("count", ("return len({v})",)),
        Ending("largest", ("return max({v}, default=0)",)),
        Ending("smallest", ("return min({v}, default=0)",)),
    ),
    "text": (
        Ending("", ("return {v}",)),
        Ending("", ("return {v}",)),
        Ending("length", ("return len({v})",)),
    ),
}


class Words(NamedTuple):
    """The vocabulary of a domain."""

    kind: ValueKind
    modules: tuple[str, ...]
    things: tuple[str, ...]
    """First words of functions' names."""
    aspects: tuple[str, ...]
    """Last words of functions' names."""
    parameters: tuple[str, ...]
    variables: tuple[str, ...]


_ASPECTS = (
    "rest", "share", "limit", "score", "rank", "mark", "level", "count", "gain", "cost", "range",
    "bonus", "point", "grade", "delay", "load", "rate", "fill", "drift", "space", "need", "claim",
    "credit", "charge", "worth", "ratio", "reach", "tally",
)  # fmt: skip

WORDS: dict[Domain, Words] = {
    "inventory": Words(
        "number",
        ("stock", "orders", "prices", "shelves", "returns"),
        (
            "carton",
            "basket",
            "barrel",
            "drawer",
            "locker",
            "bundle",
            "sack",
            "tray",
            "crate",
            "shelf",
            "order",
            "parcel",
            "pallet",
            "item",
            "rack",
            "bin",
            "label",
            "batch",
        ),
        _ASPECTS,
        ("price", "units", "fee", "weight", "stored", "sold", "ordered", "reserve"),
        ("total", "amount", "value"),
    ),
    "schedule": Words(
        "number",
        ("days", "shifts", "breaks", "rooms", "diary"),
        (
            "course",
            "trip",
            "match",
            "concert",
            "exam",
            "rehearsal",
            "tour",
            "call",
            "shift",
            "meeting",
            "lesson",
            "break",
            "visit",
            "train",
            "flight",
            "room",
            "week",
            "team",
        ),
        _ASPECTS,
        ("start", "length", "pause", "hours", "people", "late", "early", "slots"),
        ("time", "minutes", "value"),
    ),
    "geometry": Words(
        "number",
        ("shapes", "grids", "boxes", "lines", "scales"),
        (
            "prism",
            "plate",
            "panel",
            "slab",
            "wedge",
            "arch",
            "beam",
            "roof",
            "box",
            "grid",
            "line",
            "frame",
            "tile",
            "corner",
            "edge",
            "circle",
            "wall",
            "field",
        ),
        _ASPECTS,
        ("width", "height", "depth", "border", "scale", "margin", "radius", "side"),
        ("size", "area", "value"),
    ),
    "parsing": Words(
        "rows",
        ("rows", "columns", "tables", "fields", "records"),
        (
            "column",
            "digest",
            "ledger",
            "index",
            "batch",
            "packet",
            "stream",
            "frame",
            "row",
            "table",
            "cell",
            "record",
            "header",
            "entry",
            "chunk",
            "block",
            "page",
            "sheet",
        ),
        _ASPECTS,
        ("low", "high", "skip", "step", "shift", "bound", "offset", "factor"),
        ("found", "kept", "rows"),
    ),
    "text": Words(
        "text",
        ("titles", "words", "letters", "notes", "names"),
        (
            "letter",
            "phrase",
            "verse",
            "motto",
            "heading",
            "remark",
            "chapter",
            "story",
            "title",
            "word",
            "note",
            "name",
            "line",
            "caption",
            "poem",
            "quote",
            "slug",
            "tag",
        ),
        _ASPECTS,
        ("text", "old", "new", "mark"),
        ("result", "words", "value"),
    ),
}

_TEXTS = (
    "green tea", "Night Train", "abcdefgh", "Seven Small Boats", "level", "Hello World", "x1y2z3",
    "banana bread", "QUIET", "open source", "paper plane", "Mississippi",
)  # fmt: skip
_LETTERS = ("a", "e", "o", "n", "s", "b", "l")


def draw_argument(dice: random.Random, kind: ValueKind, place: int) -> object:
    """Return a random argument for the parameter at `place`, from 0, of such a function."""
    if kind == "number":
        return dice.randint(0, 20)
    if place == 0:
        if kind == "rows":
            return [dice.randint(0, 20) for _ in range(dice.randint(3, 7))]
        return dice.choice(_TEXTS)
    return dice.randint(1, 12) if kind == "rows" else dice.choice(_LETTERS)


def draw_operand(dice: random.Random, operand: Operand, parameters: tuple[str, ...]) -> str:
    """Return the operand of a step: the name of a parameter, a number, or ""."""
    if operand == "any" and parameters and dice.random() < 0.7:
        return dice.choice(parameters)
    match operand:
        case "":
            return ""
        case "small":
            return str(dice.randint(1, 4))
        case _:
            return str(dice.randint(2, 9))
