r"""Scratch logs: calculations without a question, in the format of episodes with an interpreter.

A log names numbers among unrelated words, plans operations on them, writes the program of that
plan, and states what the interpreter printed:

    <|user|> coins 37 more then 14 how <|assistant|> <think> 37 , 14 take </think>
    <code> x = 37 x -= 14 print(x) </code> <interpreter> 6021 </interpreter>
    <think> answer </think> <answer> \boxed{6021} </answer>

Operations are drawn at random and results are invented: from these logs a policy learns to copy
numbers, to turn a plan into a program and to read a result, but nothing about questions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from espalier.environments.reading import Log
from espalier.records import FinalAnswer, ToolCall, ToolCalls
from espalier_environments.python_math.arithmetic import OPERATIONS, Calculation, Change

_STEP_WEIGHTS = (0.3, 0.3, 0.25, 0.15)
"""Shares of logs with 1 to 4 operations."""
_LARGEST_NUMBER = 99
_DIGITS = (1, 4)
"""Fewest and most digits of an invented result."""
_MAX_NOISE_WORDS = 6
_TOKENIZER_LOGS = 500
"""Number of logs for the tokenizer; few suffice, since programs share a small vocabulary."""


class ScratchWriter:
    """Writes scratch logs whose noise words come from `questions`."""

    def __init__(self, questions: Sequence[str]) -> None:
        words = {word for question in questions for word in question.lower().split()}
        self._words = sorted(word for word in words if not any(map(str.isdigit, word)))

    def write(self, rng: random.Random) -> Log:
        """Return one log; depends on the state of `rng` only."""
        steps = rng.choices(range(1, len(_STEP_WEIGHTS) + 1), _STEP_WEIGHTS)[0]
        changes: list[Change] = []
        for _ in range(steps):
            operation = OPERATIONS[rng.choice(tuple(OPERATIONS))]
            numbers = [rng.randint(2, _LARGEST_NUMBER) for _ in range(operation.num_numbers)]
            changes.append(Change(operation.label, tuple(numbers)))
        calculation = Calculation(rng.randint(2, _LARGEST_NUMBER), tuple(changes))
        result = str(rng.randrange(10 ** rng.randint(*_DIGITS)))
        pieces = (
            ToolCalls(
                (ToolCall(name="python", arguments={"code": calculation.program}),),
                calculation.plan,
            ),
            result,
            FinalAnswer(rf"\boxed{{{result}}}", "answer"),
        )

        # the numbers in order, each after some noise words, with more noise at the end
        words: list[str] = []
        for number in (*map(str, calculation.numbers), ""):
            words += rng.choices(self._words, k=rng.randrange(1, _MAX_NOISE_WORDS + 1))
            words.append(number)
        return Log(" ".join(words).strip(), pieces)

    def texts(self, rng: random.Random) -> Iterator[str]:
        """Yield texts for the tokenizer: plans, programs and answers."""
        for _ in range(_TOKENIZER_LOGS):
            call, _, answer = self.write(rng).pieces
            assert isinstance(call, ToolCalls), "a log begins with a program"
            assert isinstance(answer, FinalAnswer), "and ends with its result"
            # with the same spaces as between the tags of an episode
            yield f" {call.thought}   {call.calls[0].arguments['code']} "
            yield f" {answer.thought}   {answer.text} "
