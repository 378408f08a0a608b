"""Scratch logs: programs without a task, in the format of episodes.

    <|user|> each 3 drop sum letters 5 those <|assistant|> def f(x): x = [v + 3 for v in x] ...

The prompt holds the program's parameters in order, each among random words; operations are random
too. From these logs a policy learns to write programs and to copy parameters, but nothing about the
wording of tasks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from espalier.environments.reading import Log
from espalier.records import FinalAnswer, ToolCalls
from espalier_environments.code.grammar import Chain, Kind, draw_chain

_STEPS = (1, 2, 3)
_MOST_NOISE_WORDS = 4
_TOKENIZER_LOGS = 800
Pieces = tuple[ToolCalls | FinalAnswer | str, ...]


class ScratchPrograms:
    """Writes scratch logs whose words come from `questions`.

    Args:
        questions: the questions of training tasks.
        kinds: kinds of lists that programs are about.
        pieces: program -> the pieces of an episode that ends with it.
    """

    def __init__(
        self, questions: Sequence[str], kinds: Sequence[Kind], pieces: Callable[[str], Pieces]
    ) -> None:
        self._words = sorted({word for question in questions for word in question.split()})
        self._questions = questions
        self._kinds = kinds
        self._pieces = pieces

    def write(self, rng: random.Random) -> Log:
        """Return one log; depends on the state of `rng` only."""
        chain = draw_chain(rng.choice(self._kinds), rng.choice(_STEPS), rng)
        return Log(self._prompt(chain, rng), self._pieces(chain.program))

    def texts(self, rng: random.Random) -> Iterator[str]:
        """Yield texts for the tokenizer: programs, and the words of questions."""
        for _ in range(_TOKENIZER_LOGS):
            yield f" {draw_chain(rng.choice(self._kinds), 3, rng).program} "
        yield from self._questions

    def _prompt(self, chain: Chain, rng: random.Random) -> str:
        words: list[str] = []
        for step in chain.steps:
            words += rng.choices(self._words, k=rng.randrange(1, _MOST_NOISE_WORDS + 1))
            if step.parameter is not None:
                words.append(str(step.parameter))
        words += rng.choices(self._words, k=rng.randrange(1, _MOST_NOISE_WORDS + 1))
        return " ".join(words)
