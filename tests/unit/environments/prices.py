"""A family of two typed tools: what costs something in a shop, and in another currency."""

from typing import Literal

from espalier.config import EnvironmentConfig
from espalier.environments import GaveUp, SimpleFamily, ToolError, make_task
from espalier.records import FinalAnswer, Task, ToolCall, ToolCalls

PRICES = {f"thing{n}": n for n in range(1, 40)}
SPLITS = {"train": 0, "dev": 20, "heldout": 30}


class PricesConfig(EnvironmentConfig):
    """How a shop counts."""

    name: str = "prices"
    rate: int = 2
    shops: int = 1


def price(item: str) -> int:
    """Price of an item, in euros.

    The policy is not shown this paragraph.
    """
    if item not in PRICES:
        raise ToolError(f"{item} is not sold here")
    return PRICES[item]


def convert(amount: int, currency: Literal["crown", "franc"] = "crown", *, task: Task) -> str:
    """Convert euros into another currency."""
    return f"{amount * int(task.arguments['rate'])} {currency}s"


class Prices(SimpleFamily[PricesConfig]):
    """See the module."""

    name = "prices"
    config = PricesConfig
    instructions = "Answer with the number alone.\n"

    def tools(self):
        """The shop's price list, and its exchange."""
        return (price, convert)

    def tasks(self, split, count):
        """One task an item; a split has 10 to 20 items of its own."""
        first = SPLITS[split] + 1
        return [
            make_task(
                self.name,
                f"What does thing{n} cost in crowns?",
                gold=(str(n * self.settings.rate),),
                split=split,
                source="shop",
                key=f"thing{n}",
                arguments={"rate": self.settings.rate},
                metadata={
                    "difficulty": 2,
                    "pattern": "price > convert",
                    "extra": {"kind": "small" if n < 10 else "large", "entities": [f"thing{n}"]},
                },
            )
            for n in range(first, min(first + count, first + 9))
        ]

    def verify(self, task, answer):
        """Whether the number is right."""
        return float(answer == task.verifier.gold[0])

    def demonstrate(self, task):
        """Ask for the price, convert it, answer."""
        (item,) = task.extra["entities"]
        if item == "thing3":
            raise GaveUp("no_three")
        euros = yield ToolCalls((ToolCall(name="price", arguments={"item": item}),), "price")
        call = ToolCall(name="convert", arguments={"amount": int(euros)})
        crowns = yield ToolCalls((call,), "convert")
        if item != "thing4":
            yield FinalAnswer("0" if item == "thing5" else crowns.split()[0], "answer")
