"""Training tasks in a world whose names are invented, so that RL cannot learn a source's names.

Over a hundred documents, RL sees only fifty names and soon memorises the answers: its training
reward rises and the dev EM falls. Under other names, new ones at every draw of a task, only reading
and copying earn the reward. The question, the search results and the accepted answers use the other
names, and queries are translated back to the real ones. All trajectories of a group are in the same
world.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

from espalier.records import Task
from espalier.records.folding import SpelledNames, folded_name
from espalier_search.search_qa.invented_names import InventedNames

_ARGUMENT = "names"
"""Argument of a task: real name -> name in the task's world."""
_KNOWN_WORLDS = 256
"""Cache size: a step has a world for each of its tasks, and each search in their episodes looks it
up."""


class OtherNames:
    """Translates between real names and the names of a world."""

    def __init__(self, others: Mapping[str, str]) -> None:
        """Store `others`: real name -> name in the world."""
        self._others = {real.casefold(): other for real, other in others.items()}
        self._real_or_other = SpelledNames(others, ignores_case=True)
        swapped = dict(others)  # a real name must not find its entity in a world that renames it
        for real, other in others.items():
            swapped[other] = real
            swapped[folded_name(other)] = real
        self._swapped = {written.casefold(): meant for written, meant in swapped.items()}
        self._written = SpelledNames(swapped, ignores_case=True)

    def shown(self, text: str) -> str:
        """Return `text` with the world's names."""
        return self._real_or_other.replaced(text, lambda name: _of(self._others, name))

    def meant(self, text: str) -> str:
        """Return a text of the world with the real names."""
        return self._written.replaced(text, lambda name: _of(self._swapped, name))


def names_of(task: Task) -> OtherNames | None:
    """Return the names of the task's world; None if they are the real ones."""
    others = task.arguments.get(_ARGUMENT)
    if not isinstance(others, dict):
        return None
    return _other_names(tuple(cast("dict[str, str]", others).items()))


@lru_cache(maxsize=_KNOWN_WORLDS)
def _other_names(others: tuple[tuple[str, str], ...]) -> OtherNames:
    return OtherNames(dict(others))


class WorldMaker:
    """Puts each task into a world of its own."""

    def __init__(self, titles: Sequence[str], share: float) -> None:
        """Prepare the invented names.

        Args:
            titles: titles of the documents, from which names are invented.
            share: share of the names that are replaced, 0-1.
        """
        self._titles = titles
        self._names = InventedNames(titles)
        self._share = share

    def __call__(self, task: Task, rng: random.Random) -> Task:
        """Return the task in a world drawn by `rng`.

        Names are the titles, those of the task's route, and its accepted answers.
        """
        route = task.extra.get("entities")
        real = [*self._titles, *(map(str, route) if isinstance(route, list) else ())]
        unique = {folded_name(name): name for name in (*real, *task.verifier.gold)}
        taken = set(unique)
        others: dict[str, str] = {}
        for key, name in unique.items():
            if key and rng.random() < self._share:
                others[name] = self._names.apart_from(taken, name, rng)
        names = OtherNames(others)
        prompt = tuple(
            message.model_copy(update={"content": names.shown(message.content)})
            for message in task.prompt
        )
        gold = tuple(map(names.shown, task.verifier.gold))
        return task.model_copy(
            update={
                "prompt": prompt,
                "arguments": task.arguments | {_ARGUMENT: others},
                "verifier": task.verifier.model_copy(update={"gold": gold}),
            }
        )


def _of(others: Mapping[str, str], name: str) -> str:
    return others.get(name.casefold(), name)
