"""The family of the taskset parcels_v1.py, which shows how an order is paid for."""

from espalier.environments import ToolError
from espalier.records import FinalAnswer, ToolCalls
from espalier_interop.verifiers import TasksetFamily
from tests.interop.agents.parcels import PRICES, WEIGHTS


def weigh(item: str, count: int) -> int:
    """Weight of an order in kilograms."""
    if item not in WEIGHTS:
        raise ToolError(f"no {item} here")
    return WEIGHTS[item] * count


def fee(kilograms: int, carrier: str) -> int:
    """Fee in euros for so many kilograms with a carrier."""
    if carrier not in PRICES:
        raise ToolError(f"no {carrier} here")
    return PRICES[carrier] * kilograms


class Parcels(TasksetFamily):
    """Any taskset with a teacher of one's own is a family like this."""

    name = "parcels_of_verifiers"
    splits_digits = True

    def split_key(self, data, asked):
        """The order, however it is asked for."""
        return f"{data['count']} {data['item']} {data['carrier']}"

    def tools(self):
        """As the taskset's harness has them."""
        return (weigh, fee)

    def verify(self, task, answer):
        """Of demonstrations; in roll-outs the taskset rewards."""
        return float(answer == task.arguments["task_data"]["answer"])

    def demonstrate(self, task):
        """Weigh, ask for the fee, answer."""
        order = task.arguments["task_data"]
        asked = {"item": order["item"], "count": order["count"]}
        weight = yield ToolCalls.one("weigh", asked, "weight")
        asked = {"kilograms": int(weight), "carrier": order["carrier"]}
        paid = yield ToolCalls.one("fee", asked, "fee")
        yield FinalAnswer(paid, "answer")
