"""Programs that are chains of operations on a whole number, as the stories of arithmetic are.

def f(x):
    x += 14
    x *= 3
    return x
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from espalier.config import SynthesisConfig
from espalier.environments.python_math.arithmetic import VARIABLE, Chain, split_of
from espalier.environments.python_math.stories import StoryTeller
from espalier.synthesis.funnel import Funnel

MAX_STEPS = 4
_INPUTS = (5, 99)
_DRAWS = 200


class Proposal(NamedTuple):
    """A program that defines f, and calls of it."""

    program: str
    parameters: str
    inputs: tuple[str, ...]
    """Arguments as they stand in a call; the first is the one that a single case has."""
    expression: str
    """What f returns, in its parameters; empty where that is no single expression."""
    steps: int
    kind: str
    """Which programs are alike, such as "add > times"."""


def chain_proposals(steps: int, num_inputs: int, rng: random.Random) -> Iterator[Proposal]:
    """Chains of the training split with so many steps, none twice, until few new ones are left.

    What f does to any of the inputs is a chain of the training split too: the story of none of them
    is a dev or a held-out question.
    """
    weights = [0.0] * MAX_STEPS
    weights[steps - 1] = 1.0
    config = SynthesisConfig.model_validate({"chain_weights": weights})
    teller = StoryTeller("train", config, rng.getrandbits(48), Funnel())
    for chain in teller.chains(_DRAWS):
        starts = _starts(chain, num_inputs, rng)
        if len(starts) == num_inputs:
            yield Proposal(
                program=_program(chain),
                parameters=VARIABLE,
                inputs=tuple(map(str, starts)),
                expression=_expression(chain),
                steps=steps,
                kind=" > ".join(change.label for change in chain.changes),
            )


def _starts(chain: Chain, count: int, rng: random.Random) -> list[int]:
    """The chain's own start, and others from which it is of the training split as well."""
    others = rng.sample(range(*_INPUTS), _INPUTS[1] - _INPUTS[0])
    found = [chain.start]
    for start in others:
        if len(found) == count:
            break
        if start != chain.start and split_of(Chain(start, chain.changes)) == "train":
            found.append(start)
    return found


def _program(chain: Chain) -> str:
    lines = [change.line for change in chain.changes]
    body = "\n    ".join([*lines, f"return {VARIABLE}"])
    return f"def f({VARIABLE}):\n    {body}"


def _expression(chain: Chain) -> str:
    """`x += 14`, `x *= 3` as `(x + 14) * 3`."""
    text = VARIABLE
    for change in chain.changes:
        _, operator, operand = change.line.split(" ", 2)
        text = f"({text}) {operator.removesuffix('=')} ({operand})"
    return text
