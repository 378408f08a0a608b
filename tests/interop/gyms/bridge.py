"""A foreign text environment as an environment of ours: reset, step and score over a pipe."""

import json
import subprocess
from contextlib import contextmanager
from pathlib import Path

from espalier.environments import Environments, Opening, Step
from espalier.records import FinalAnswer, Message
from espalier.records.trajectory import FinishReason
from tests.interop.venvs import python_of

SERVE = Path(__file__).parent / "serve.py"


class Gym:
    """A process with one environment, which plays one episode after another."""

    def __init__(self, process):
        self._process = process

    def ask(self, **message):
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def gym(package, kind, name):
    command = [python_of(package), SERVE, kind, name]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield Gym(process)
        finally:
            process.kill()


class GymEnvironment:
    """What the policy says is an action; what the gym answers is a user's message."""

    def __init__(self, of):
        self._gym = of
        self._rewards = []
        self.tool_results = ()
        self.answer = None
        self.finish_reason = None

    def reset(self, task):
        told = self._gym.ask(reset=task.arguments["seed"])
        return Opening(tuple(Message(**one) for one in told["messages"]), ())

    def step(self, action):
        if not isinstance(action, FinalAnswer):
            self.finish_reason = FinishReason.PARSE_ERROR
            return Step((), self.finish_reason)
        told = self._gym.ask(step=action.text)
        self._rewards.append(told["reward"])
        if told["done"]:
            self.answer, self.finish_reason = action.text, FinishReason.ANSWERED
            return Step((), self.finish_reason, told["reward"])
        messages = tuple(Message(role="user", content=one["content"]) for one in told["messages"])
        return Step(messages, None, told["reward"])

    def cut_off(self, reason):
        self.finish_reason = reason

    def score(self):
        return {"outcome": self._rewards[-1] if self.answer is not None else 0.0}


def environments_of(gym_of):
    return Environments(
        family="gym", tools=(), instructions="", make=lambda _task: GymEnvironment(gym_of)
    )
