"""A family whose tasks are solved with the tools of parcel_desk.py, and that shows how."""

import random

from espalier.environments import dealt_split, make_task
from espalier.records import FinalAnswer, ToolCalls
from espalier_interop.mcp import Mcp
from tests.interop.agents.parcels import PRICES, TOWNS, WEIGHTS, WORDS


class ParcelsOnMcp(Mcp):
    """Any server with tasks of one's own is a family like this."""

    name = "parcels_on_mcp"
    splits_digits = True

    def tasks(self, split, count):
        """Orders whose questions are dealt to the split."""
        dice, found = random.Random(f"{split} {self.profile.seed}"), {}
        while len(found) < count:
            item, carrier = dice.choice(sorted(WEIGHTS)), dice.choice(sorted(PRICES))
            number, how = dice.randint(2, 12), dice.choice(WORDS[carrier])
            asked = f"send {number} of {item} to {dice.choice(TOWNS)} {how} , what is the fee ?"
            if dealt_split(asked, self.profile.splits) == split:
                found[asked] = (item, number, carrier)
        return [self._task(split, asked, *order) for asked, order in found.items()]

    def _task(self, split, asked, item, number, carrier):
        order = {"item": item, "number": number, "carrier": carrier}
        fee = WEIGHTS[item] * number * PRICES[carrier]
        return make_task(
            self.name, asked, gold=(str(fee),), split=split, source="parcels", key=asked,
            metadata={"extra": {"query": asked, **order}},
        )  # fmt: skip

    def demonstrate(self, task):
        """Weigh, ask for the fee, answer with it."""
        order = task.extra
        asked = {"item": order["item"], "count": order["number"]}
        weight = yield ToolCalls.one("weigh", asked)
        asked = {"carrier": order["carrier"], "weight": int(weight)}
        fee = yield ToolCalls.one("fee", asked)
        yield FinalAnswer(fee)
