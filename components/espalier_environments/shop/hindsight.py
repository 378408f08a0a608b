"""The goal that a purchase meets: what was bought becomes what is asked for.

    asked     i need a soft waterproof jacket , size large .
    bought    soft waterproof jacket, size small
    solved    find me a soft waterproof jacket , size small , under 60 dollars .

The goal asks for the attributes that the visit showed: those in the title, and those on a product's
further pages if one of them was opened. Only the part of the visit from the last search on is used,
and the words of that search must be in the new goal: otherwise the demonstration would teach
searches that do not follow from the goal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from espalier.environments.demonstrations import Rejected
from espalier.environments.hindsight import OF_ANOTHER_SPLIT, Achieved, MadeCall, made_calls
from espalier.records import Task
from espalier.records.folding import words
from espalier.records.trajectory import Trajectory
from espalier_environments.shop.catalogue import FILLER, Catalogue, Product
from espalier_environments.shop.goals import goal_task, read_purchase
from espalier_environments.shop.made_catalogue import goal_in_words
from espalier_environments.shop.tools import BUY
from espalier_environments.shop.visit import Purchase, clicked_name

SOURCE = "hindsight"
_PAGES_OF_ATTRIBUTES = frozenset({"features", "attributes", "description"})


class ShopHindsight:
    """A `Hindsight` over one catalogue."""

    def __init__(
        self, catalogue: Catalogue, is_of_training: Callable[[Product], bool], *, family: str
    ) -> None:
        """Store what purchases are interpreted with.

        Args:
            catalogue: the catalogue of the training tasks.
            is_of_training: whether a product has no dev or held-out goal.
            family: name of the family in tasks.
        """
        self._catalogue = catalogue
        self._is_of_training = is_of_training
        self._family = family

    def achieved(self, task: Task, attempt: Trajectory) -> Achieved | Rejected:
        """Return the goal that the purchase meets, or why there is none."""
        del task
        made = [one for one in made_calls(attempt) if one.result.succeeded]
        if not made or made[-1].call.name != BUY or attempt.answer is None:
            return Rejected("nothing_bought")
        purchase = read_purchase(attempt.answer, self._catalogue)
        if purchase is None:
            return Rejected("nothing_bought")
        if not self._is_of_training(purchase.product):
            return Rejected(OF_ANOTHER_SPLIT)
        # a search discards whatever was opened before
        last = max(place for place, one in enumerate(made) if one.call.name == "search")
        visit = made[last:]
        goal = self._goal(purchase, visit)
        if goal is None:
            return Rejected("nothing_to_ask_for")
        if not set(words(_argument(visit[0], "query"))) <= set(words(goal.question)):
            return Rejected("searched_for_something_else")
        return Achieved(goal, tuple(one.action for one in visit))

    def _goal(self, purchase: Purchase, visit: Sequence[MadeCall]) -> Task | None:
        """Return the goal that the purchase meets; None if nothing shown can be asked for."""
        record = purchase.product.record
        if not record.query:
            return None

        # attributes off the title count if a further page was opened between product and purchase
        asked = [one for one in record.attributes if one in record.title.lower()]
        clicks = [clicked_name(_argument(one, "target")) for one in visit]
        opened = len(clicks) - clicks[::-1].index(purchase.product.asin)
        if not _PAGES_OF_ATTRIBUTES.isdisjoint(clicks[opened:]):
            asked = list(record.attributes)
        if not asked or asked == [FILLER]:
            return None
        dice = random.Random(f"hindsight {purchase.product.asin} {purchase.options} {asked}")
        goal = goal_in_words(dice, purchase.product, purchase.options, asked)
        return goal_task(goal, family=self._family, split="train", source=SOURCE)


def _argument(made: MadeCall, name: str) -> str:
    return str(made.call.arguments.get(name, ""))
