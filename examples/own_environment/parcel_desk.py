"""A family of tasks in a package of its own: what it costs to send an order.

send 7 of the article lamp to oslo on a ship , what is the fee ?
weigh(item="lamp", count=7) -> 35      fee(kilograms=35, carrier="sea") -> 70      answer 70
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from espalier.config import EnvironmentConfig
from espalier.environments import Script, SimpleFamily, ToolError, dealt_split, make_task
from espalier.records import FinalAnswer, Split, Task, ToolCalls

Carrier = Literal["rail", "road", "sea", "air"]
WORDS: dict[Carrier, Sequence[str]] = {
    "rail": ("by train", "on rails", "by railway", "in a freight wagon"),
    "road": ("by truck", "on the motorway", "by van", "in a lorry"),
    "sea": ("on a ship", "by boat", "across the ocean", "in a sea container"),
    "air": ("by plane", "through the air", "on a flight", "in a jet"),
}
PRICES: dict[Carrier, int] = {"rail": 3, "road": 4, "sea": 2, "air": 6}
WEIGHTS = {"lamp": 5, "chair": 7, "desk": 9, "rug": 6, "clock": 2, "mirror": 8, "vase": 4}
WEIGHTS |= {"bench": 9, "stool": 6, "kettle": 3, "globe": 5, "shelf": 7, "drum": 4, "tent": 8}
TOWNS = ("oslo", "turin", "lyon", "cork", "graz", "porto", "malmo", "bern", "ghent", "split")
ASKED = (
    "send {count} of the article {item} to {town} {how} , what is the fee ?",
    "what does it cost {how} to bring {count} of {item} to {town} ?",
    "{town} wants {item} , {count} of them , {how} . how much is that ?",
)


class ParcelDeskConfig(EnvironmentConfig):
    """Keys of [environment]."""

    name: str = "parcel_desk"
    largest_order: int = Field(default=12, ge=2)


def weigh(item: str, count: Annotated[int, Field(ge=1)]) -> int:
    """Weight of an order in kilograms."""
    if item not in WEIGHTS:
        raise ToolError(f"no {item} here")
    return WEIGHTS[item] * count


def fee(kilograms: Annotated[int, Field(ge=1)], carrier: Carrier) -> int:
    """Fee in euros for so many kilograms with a carrier."""
    return PRICES[carrier] * kilograms


class ParcelDesk(SimpleFamily[ParcelDeskConfig]):
    """What the stages of a run ask this family for."""

    name, config, splits_digits = "parcel_desk", ParcelDeskConfig, True

    def tools(self) -> Sequence[object]:
        """Two typed functions."""
        return (weigh, fee)

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Orders dealt to splits by item, count and carrier: none is in two."""
        rng = random.Random(f"{self.profile.seed}/{split}")
        tasks: dict[str, Task] = {}
        for _ in range(50 * count):
            item, carrier = rng.choice(list(WEIGHTS)), rng.choice(list(WORDS))
            number = rng.randint(2, self.settings.largest_order)
            order = f"{number} {item} {carrier}"
            if dealt_split(order, self.profile.splits) != split or len(tasks) == count:
                continue
            words = {"item": item, "count": number, "town": rng.choice(TOWNS)}
            question = rng.choice(ASKED).format(**words, how=rng.choice(WORDS[carrier]))
            extra = {"item": item, "count": number, "carrier": carrier, "kind": carrier}
            tasks[question] = make_task(
                self.name, question, gold=(str(fee(weigh(item, number), carrier)),), split=split,
                source="orders", key=question, metadata={"extra": extra},
            )  # fmt: skip
        return list(tasks.values())

    def verify(self, task: Task, answer: str | None) -> float:
        """1 where the fee is right."""
        return float(answer is not None and answer.strip() == task.verifier.gold[0])

    def demonstrate(self, task: Task) -> Script:
        """Weigh, ask for the fee, answer."""
        item, count, carrier = (task.extra[key] for key in ("item", "count", "carrier"))
        weight = yield ToolCalls.one("weigh", {"item": item, "count": count}, "weight")
        paid = yield ToolCalls.one("fee", {"kilograms": int(weight), "carrier": carrier}, "fee")
        yield FinalAnswer(paid, "answer")
