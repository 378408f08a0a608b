"""What agents and servers of the interop tests share: the parcel desk, and tasks from the input.

Nothing here or beside it knows espalier: each agent runs in a venv with its own library alone.
"""

import json
import os
import sys

WEIGHTS = {"lamp": 5, "chair": 7, "desk": 9, "rug": 6, "clock": 2, "mirror": 8, "vase": 4}
WEIGHTS |= {"bench": 9, "stool": 6, "kettle": 3, "globe": 5, "shelf": 7, "drum": 4, "tent": 8}
PRICES = {"rail": 3, "road": 4, "sea": 2, "air": 6}
WORDS = {
    "rail": ("by train", "on rails", "by railway"),
    "road": ("by truck", "on the motorway", "by van"),
    "sea": ("on a ship", "by boat", "across the ocean"),
    "air": ("by plane", "through the air", "on a flight"),
}
TOWNS = ("oslo", "turin", "lyon", "cork", "graz", "porto", "malmo", "bern", "ghent", "split")
MOST_TURNS = 4


def weighed(item: str, count: int) -> str:
    return str(WEIGHTS[item] * count) if item in WEIGHTS else f"no {item} here"


def paid(kilograms: int, carrier: str) -> str:
    return str(PRICES[carrier] * kilograms) if carrier in PRICES else f"no {carrier} here"


def question():
    return json.loads(os.environ["ESPALIER_TASK"])["messages"][0]["content"]


def play_all(play):
    """Play the task of each line of the input; what fails is said, and ends that task alone."""
    for line in sys.stdin:
        os.environ.update(json.loads(line))
        play(question())
        print(json.dumps({"attempt": os.environ["ESPALIER_ATTEMPT"], "status": 0}), flush=True)
