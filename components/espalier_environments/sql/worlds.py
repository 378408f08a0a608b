"""Generated databases: two tables of a world, the larger one referring to the smaller.

A world names tables and columns. A database takes some of its columns, and rows with invented
names, random words and numbers. Names are assigned to splits, and a database only has names of its
split.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from espalier.config import SplitsConfig
from espalier.environments.family import dealt_split
from espalier.records import Split
from espalier_environments.sql.config import MadeDatabasesConfig
from espalier_environments.sql.databases import Column, Database, Table, Value, make_database

Range = tuple[int, int]
NAME = "name"
"""The first column of every table."""


@dataclass(frozen=True, slots=True)
class TableSketch:
    """The possible columns of a table."""

    name: str
    words: dict[str, tuple[str, ...]]
    """Column -> the words that occur in it."""
    numbers: dict[str, Range]
    """Column -> its lowest and highest value."""


@dataclass(frozen=True, slots=True)
class World:
    """Two tables; `link` is the column of the first that names a row of the second."""

    larger: TableSketch
    smaller: TableSketch
    link: str


_COLORS = ("red", "blue", "green", "white", "black")
_PLACES = ("north", "south", "east", "west", "coast")
_YEARS = (1950, 2020)

WORLDS = (
    World(
        TableSketch(
            "players",
            {"position": ("guard", "keeper", "forward", "center"), "foot": ("left", "right")},
            {"goals": (0, 60), "age": (17, 40), "salary": (20, 99)},
        ),
        TableSketch("teams", {"region": _PLACES}, {"titles": (0, 30), "fans": (10, 99)}),
        "team",
    ),
    World(
        TableSketch(
            "books",
            {"genre": ("novel", "poem", "drama", "essay"), "cover": ("hard", "soft")},
            {"pages": (40, 900), "year": _YEARS, "price": (5, 60)},
        ),
        TableSketch(
            "authors",
            {"language": ("dutch", "latin", "greek", "welsh")},
            {"awards": (0, 20), "born": (1900, 1990)},
        ),
        "author",
    ),
    World(
        TableSketch(
            "songs",
            {"style": ("jazz", "rock", "folk", "soul"), "key": ("major", "minor")},
            {"seconds": (90, 600), "plays": (10, 999), "year": _YEARS},
        ),
        TableSketch("singers", {"voice": ("alto", "bass", "tenor")}, {"albums": (1, 40)}),
        "singer",
    ),
    World(
        TableSketch(
            "dogs",
            {"breed": ("poodle", "collie", "beagle", "boxer"), "color": _COLORS},
            {"weight": (3, 70), "age": (1, 16), "height": (20, 90)},
        ),
        TableSketch("owners", {"town": _PLACES}, {"age": (18, 90), "visits": (0, 50)}),
        "owner",
    ),
    World(
        TableSketch(
            "ships",
            {"cargo": ("grain", "oil", "wood", "fruit"), "flag": _COLORS},
            {"length": (30, 400), "crew": (4, 90), "year": _YEARS},
        ),
        TableSketch("ports", {"sea": _PLACES}, {"depth": (5, 60), "cranes": (1, 40)}),
        "port",
    ),
    World(
        TableSketch(
            "courses",
            {"subject": ("math", "music", "art", "biology"), "level": ("basic", "high")},
            {"hours": (10, 90), "seats": (8, 200), "fee": (0, 900)},
        ),
        TableSketch("teachers", {"office": _PLACES}, {"age": (25, 70), "years": (1, 40)}),
        "teacher",
    ),
    World(
        TableSketch(
            "phones",
            {"color": _COLORS, "network": ("fast", "slow")},
            {"price": (90, 999), "weight": (100, 300), "memory": (8, 512)},
        ),
        TableSketch("makers", {"region": _PLACES}, {"workers": (20, 900), "founded": _YEARS}),
        "maker",
    ),
    World(
        TableSketch(
            "dishes",
            {"course": ("soup", "main", "salad", "dessert"), "taste": ("sweet", "sour")},
            {"price": (3, 60), "minutes": (5, 180), "calories": (50, 999)},
        ),
        TableSketch("cooks", {"kitchen": ("open", "closed")}, {"stars": (0, 3), "age": (20, 70)}),
        "cook",
    ),
    World(
        TableSketch(
            "films",
            {"genre": ("comedy", "drama", "horror", "western"), "format": ("color", "mono")},
            {"minutes": (60, 240), "year": _YEARS, "rating": (1, 99)},
        ),
        TableSketch("directors", {"school": _PLACES}, {"films": (1, 60), "born": (1900, 1990)}),
        "director",
    ),
    World(
        TableSketch(
            "trees",
            {"leaf": ("oak", "maple", "birch", "pine"), "bark": ("rough", "smooth")},
            {"height": (2, 60), "age": (3, 500), "width": (10, 300)},
        ),
        TableSketch("parks", {"side": _PLACES}, {"benches": (0, 90), "area": (1, 400)}),
        "park",
    ),
)  # fmt: skip

_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "t", "v", "z")
_VOWELS = ("a", "e", "i", "o", "u")


def names_of(split: Split, splits: SplitsConfig) -> Sequence[str]:
    """Return the invented names of a split: two open syllables and a consonant, such as "bakon"."""
    return _dealt_names(splits.heldout_share, splits.dev_share)[split]


@cache
def _dealt_names(heldout_share: float, dev_share: float) -> dict[Split, list[str]]:
    splits = SplitsConfig(heldout_share=heldout_share, dev_share=dev_share)
    syllables = [onset + vowel for onset, vowel in product(_ONSETS, _VOWELS)]
    names: dict[Split, list[str]] = {"train": [], "dev": [], "heldout": []}
    for place, first in enumerate(syllables):
        for other, second in enumerate(syllables):
            name = f"{first}{second}{_ENDINGS[(place + other) % len(_ENDINGS)]}"
            names[dealt_split(name, splits)].append(name)
    return names


_ENDINGS = ("n", "s", "l", "r")


@dataclass(frozen=True, slots=True)
class MadeDatabase:
    """A database, with the tables that questions are made from."""

    world: World
    larger: Table
    smaller: Table
    database: Database

    @property
    def schema(self) -> str:
        """Tables and columns, as shown in the prompt."""
        return " ".join(
            f"{table.name} ( {' , '.join(column.name for column in table.columns)} )"
            for table in (self.larger, self.smaller)
        )


def made_databases(
    config: MadeDatabasesConfig, splits: SplitsConfig, split: Split
) -> list[MadeDatabase]:
    """Return the databases of a split, the same ones for the same seed."""
    names = (f"made-{config.seed}-{number}" for number in range(config.databases))
    return [
        _made(name, config, names_of(split, splits))
        for name in names
        if dealt_split(name, splits) == split
    ]


def made_database(name: str, config: MadeDatabasesConfig, splits: SplitsConfig) -> MadeDatabase:
    """Return the database with that name."""
    return _made(name, config, names_of(dealt_split(name, splits), splits))


def _made(name: str, config: MadeDatabasesConfig, names: Sequence[str]) -> MadeDatabase:
    dice = random.Random(name)
    world = dice.choice(WORLDS)
    few = max(2, config.rows // 2)
    drawn = dice.sample(names, config.rows + few)
    smaller = _table(world.smaller, drawn[:few], dice, None)
    larger = _table(world.larger, drawn[few:], dice, (world.link, world.smaller.name, drawn[:few]))
    return MadeDatabase(world, larger, smaller, make_database(name, (smaller, larger)))


def _table(
    sketch: TableSketch,
    names: Sequence[str],
    dice: random.Random,
    link: tuple[str, str, Sequence[str]] | None,
) -> Table:
    """Return a table with one word column of the sketch and two number columns, in random order."""
    words = dice.sample(sorted(sketch.words), 1)
    numbers = dice.sample(sorted(sketch.numbers), min(2, len(sketch.numbers)))
    columns = [*(Column(word) for word in words), *(Column(one, "INTEGER") for one in numbers)]
    if link is not None:
        columns.append(Column(link[0], refers_to=(link[1], NAME)))
    dice.shuffle(columns)
    rows: list[list[Value]] = []
    for name in names:
        row: list[Value] = [name]
        for column in columns:
            if column.refers_to and link is not None:
                row.append(dice.choice(link[2]))
            elif column.name in sketch.words:
                row.append(dice.choice(sketch.words[column.name]))
            else:
                row.append(dice.randint(*sketch.numbers[column.name]))
        rows.append(row)
    return Table(sketch.name, (Column(NAME), *columns), rows)
