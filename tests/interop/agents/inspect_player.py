"""The parcel desk as a task of Inspect: its solver plays, and its scorer rewards the attempt."""

import json
import os
import re
import tempfile
import urllib.request

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import exact
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool
from parcels import MOST_TURNS, PRICES, WEIGHTS, paid, play_all, weighed

_ITEM = re.compile("|".join(WEIGHTS))
_COUNT = re.compile(r"\d+")
_CARRIERS = {
    "rail": ("train", "rails", "railway", "wagon"),
    "road": ("truck", "motorway", "van", "lorry"),
    "sea": ("ship", "boat", "ocean", "sea"),
    "air": ("plane", "air", "flight", "jet"),
}


@tool
def weigh():
    async def execute(item: str, count: int) -> str:
        """Weight of an order in kilograms.

        Args:
            item: Article.
            count: How many.
        """
        return weighed(item, count)

    return execute


@tool
def fee():
    async def execute(kilograms: int, carrier: str) -> str:
        """Fee in euros for so many kilograms with a carrier.

        Args:
            kilograms: Weight.
            carrier: rail, road, sea or air.
        """
        return paid(kilograms, carrier)

    return execute


def target(question):
    """What the fee is, read off the question."""
    carrier = next(
        name for name, words in _CARRIERS.items() if any(f" {word} " in question for word in words)
    )
    item, count = _ITEM.search(question)[0], int(_COUNT.search(question)[0])
    return str(WEIGHTS[item] * count * PRICES[carrier])


def play(question, logs):
    """Evaluate a task of this one question, and post what its scorer says."""
    model = get_model(
        f"openai-api/espalier/{os.environ['ESPALIER_MODEL']}",
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        config=GenerateConfig(max_retries=0),
        memoize=False,
    )
    task = Task(
        dataset=[Sample(input=question, target=target(question))],
        solver=[use_tools(weigh(), fee()), generate()],
        scorer=exact(),
        message_limit=2 * MOST_TURNS + 1,
    )
    (log,) = eval(
        task, model=model, display="none", log_level="error", log_dir=logs,
        fail_on_error=False, log_realtime=False,
    )  # fmt: skip
    scores = log.samples[0].scores if log.samples else None
    if scores:
        post(float(scores["exact"].value == "C"))


def post(reward):
    """Reward the attempt."""
    body = json.dumps({"reward": reward}).encode()
    request = urllib.request.Request(
        os.environ["ESPALIER_REWARD_URL"], body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as logs:
        play_all(lambda question: play(question, logs))
