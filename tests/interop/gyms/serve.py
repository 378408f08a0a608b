"""An environment of GEM or SkyRL-gym behind JSON lines, for a venv that has one of them alone.

python serve.py gem game:GuessTheNumber-v0-hard
python serve.py skyrl gsm8k_multi_turn

{"reset": 4}        ->  {"messages": [{"role": "user", "content": ...}]}
{"step": TEXT}      ->  {"messages": [...], "reward": 0.5, "done": false}
"""

import json
import os
import random
import sys


class Gem:
    """reset() and step() of GEM's Env."""

    def __init__(self, name):
        import gem

        self._env = gem.make(name)

    def reset(self, seed):
        """The first observation of a seed."""
        text, _ = self._env.reset(seed)
        return [{"role": "user", "content": text}]

    def step(self, said):
        """What GEM answers, with its suffix that asks for more."""
        text, reward, terminated, truncated, info = self._env.step(said)
        told = {"role": "user", "content": f"{text}\n{info['suffix']}"}
        return [told], float(reward), bool(terminated or truncated)


class SkyRl:
    """init() and step() of SkyRL-gym's BaseTextEnv, for sums whose answer a seed gives."""

    def __init__(self, name):
        self._name = name

    def reset(self, seed):
        """A sum, and an environment that knows its answer."""
        import skyrl_gym

        dice = random.Random(seed)
        first, second = dice.randrange(90), dice.randrange(90)
        extras = {"reward_spec": {"ground_truth": str(first + second)}, "max_turns": 3}
        self._env = skyrl_gym.make(self._name, env_config={}, extras=extras)
        asked = f"What is {first} + {second} ? End with '#### ANSWER'."
        prompt, _ = self._env.init([{"role": "user", "content": asked}])
        return prompt

    def step(self, said):
        """What SkyRL-gym answers."""
        told = self._env.step(said)
        return told["observations"], float(told["reward"]), bool(told["done"])


def main():
    kind, name = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the packages print is no answer
    env = {"gem": Gem, "skyrl": SkyRl}[kind](name)
    for line in sys.stdin:
        asked = json.loads(line)
        if "reset" in asked:
            said = {"messages": env.reset(asked["reset"])}
        else:
            messages, reward, done = env.step(asked["step"])
            said = {"messages": messages, "reward": reward, "done": done}
        print(json.dumps(said), file=out, flush=True)


main()
