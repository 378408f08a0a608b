"""The parcel desk as an environment of the real openenv package, for a venv that has it alone.

python parcel_server.py PORT
"""

import random
import sys
from typing import Literal

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

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


class Desk(Action):
    """One thing to do at the desk."""

    do: Literal["weigh", "fee", "answer"]
    what: str
    count: int = 0


class Said(Observation):
    """What the desk says."""

    prompt: str = ""
    result: str = ""


class ParcelDesk(Environment[Desk, Said, State]):
    """Weigh an order, ask for its fee, answer with it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()
        self._fee = 0

    def reset(self, seed=None, episode_id=None, **_):
        """An order, always the same one for a seed."""
        rng = random.Random(seed)
        item, carrier = rng.choice(sorted(WEIGHTS)), rng.choice(sorted(PRICES))
        count, town = rng.randint(2, 12), rng.choice(TOWNS)
        self._fee = WEIGHTS[item] * count * PRICES[carrier]
        self._state = State(episode_id=episode_id, step_count=0)
        how = rng.choice(WORDS[carrier])
        return Said(prompt=f"send {count} of {item} to {town} {how} , what is the fee ?")

    def step(self, action, timeout_s=None, **_):
        """Weigh, price, or judge the answer."""
        self._state.step_count += 1
        if action.do == "weigh" and action.what in WEIGHTS:
            return Said(result=str(WEIGHTS[action.what] * action.count))
        if action.do == "fee" and action.what in PRICES:
            return Said(result=str(PRICES[action.what] * action.count))
        if action.do == "answer":
            right = float(action.what.strip() == str(self._fee))
            return Said(result="right" if right else "wrong", done=True, reward=right)
        return Said(result=f"there is no {action.what} here")

    @property
    def state(self):
        """Where the episode stands."""
        return self._state


if __name__ == "__main__":
    app = create_app(ParcelDesk, Desk, Said, env_name="parcels", max_concurrent_envs=1024)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
