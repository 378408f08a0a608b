"""The words of arithmetic stories; {n}, or {a} and {b}, are numbers, in the order of the step's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

START: Sequence[str] = (
    "{name} has {n} {things} .",
    "there are {n} {things} in the box of {name} .",
    "{name} starts with {n} {things} .",
    "at first {name} owns {n} {things} .",
    "{name} counts {n} {things} .",
)

CHANGES: Mapping[str, Sequence[str]] = {
    "add": (
        "{name} buys {n} more .",
        "{name} finds {n} more .",
        "{friend} gives {name} {n} more .",
        "then {n} {things} are added .",
        "{name} wins another {n} .",
        "a parcel brings {n} further {things} .",
        "{name} picks up {n} on the way .",
        "{n} {things} come as a present from {friend} .",
    ),
    "take": (
        "{name} loses {n} of them .",
        "{name} gives {n} to {friend} .",
        "{name} sells {n} .",
        "{n} of them break .",
        "{friend} takes {n} away .",
        "{name} throws {n} away .",
        "{n} {things} are stolen .",
        "{name} lends {n} of them to {friend} .",
    ),
    "times": (
        "then the number grows to {n} times as many .",
        "{name} makes it {n} times as many .",
        "after a year there are {n} times as many .",
        "{friend} multiplies the number by {n} .",
        "every one of them becomes {n} .",
        "the stock rises {n} fold .",
        "{name} trades each of them for {n} others .",
    ),
    "share": (
        "{name} splits them into {n} equal parts and keeps one .",
        "only one of every {n} stays .",
        "the number falls to one part in {n} .",
        "{name} deals them out to {n} equal bags and goes on with one bag .",
        "{friend} divides the number by {n} .",
        "they are packed into {n} equal crates , and {name} keeps a single crate .",
    ),
    "add groups": (
        "{name} buys {a} bags with {b} {things} each .",
        "{a} friends bring {b} {things} each .",
        "{name} earns {a} {things} a day for {b} days .",
        "{a} boxes of {b} are delivered .",
        "on each of {a} days {b} more arrive .",
        "{name} fills up with {a} packs of {b} .",
    ),
    "take groups": (
        "{name} gives {a} friends {b} {things} each .",
        "{a} boxes of {b} are sent away .",
        "on each of {a} days {name} eats {b} .",
        "{a} customers take {b} each .",
        "{name} uses {a} a day for {b} days .",
        "{a} shelves of {b} fall down and break .",
    ),
}
"""Label of an operation -> its phrasings."""

QUESTIONS: Sequence[str] = (
    "how many {things} does {name} have now ?",
    "how many are there in the end ?",
    "how many {things} are left with {name} ?",
    "what is the number now ?",
    "how many does {name} end up with ?",
)

NAMES: Sequence[str] = re.findall(
    r"\w+",
    """
    ada ben carla david elena felix greta hugo ines jonas kira leo mara nils olga paul rosa simon
    tara victor wanda yuri zoe tom
    """,
)

THINGS: Sequence[str] = re.findall(
    r"\w+",
    """
    apples books cards coins eggs flowers marbles nails pencils plates shells stamps stones sweets
    tickets toys nuts buttons candles cups keys lamps rings seeds
    """,
)
