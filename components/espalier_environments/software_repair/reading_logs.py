"""Reading logs: functions are shown, and lines of them are rewritten unchanged.

    <|user|> crate_total(3, 4) gives 71 , expected 8 <|assistant|> show crate_total
    <result> stock.py 4 def crate_total(price, fee): ... </result> replace_line stock.py 6 ...

Results are invented and nothing is repaired: a policy learns to copy names and numbers, to read a
function with line numbers, and how code relates to its docstring.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import lru_cache

from espalier.config import SplitsConfig
from espalier.environments.reading import Log
from espalier.records import FinalAnswer, ToolCall, ToolCalls
from espalier_environments.software_repair.config import RepositoriesConfig
from espalier_environments.software_repair.repositories import (
    MadeRepository,
    make_repository,
    repository_split,
)
from espalier_environments.software_repair.tree_tools import TreeTools
from espalier_environments.software_repair.worktree import Worktree

DONE = "done"
_REPOSITORIES = 150
"""Number of repositories of the training split; others are made of the same parts."""
_LARGEST_RESULT = 99
_TOKENIZER_LOGS = 600
_SHOWN = 100_000


class RepositoryReading:
    """Writes logs over repositories of the training split."""

    def __init__(self, config: RepositoriesConfig, splits: SplitsConfig) -> None:
        self._config = config
        self._splits = splits
        numbers = (n for n in range(100 * _REPOSITORIES))
        train = (n for n in numbers if repository_split(n, config, splits) == "train")
        self._numbers = [number for number, _ in zip(train, range(_REPOSITORIES), strict=False)]
        self._made = lru_cache(maxsize=_REPOSITORIES)(self._make)

    def write(self, rng: random.Random) -> Log:
        """Return one log; depends on the state of `rng` only."""
        repository = self._made(rng.choice(self._numbers))
        tools = TreeTools(Worktree(repository.files()), _SHOWN)
        function = rng.choice(repository.functions)
        pieces: list[ToolCalls | FinalAnswer | str] = []
        shown = [function]
        if function.callee and rng.random() < 0.5:
            shown.append(repository.named(function.callee))
        for one in shown:
            pieces += [_call("show", name=one.name), tools.show(one.name)]

        # a line of the last function's body
        path, *lines = tools.show(shown[-1].name).split("\n")
        place, _, written = rng.choice(lines[2:]).partition(" ")
        line, text = int(place), written.strip()
        pieces += [
            _call("replace_line", path=path, line=line, new=text),
            tools.replace_line(path, line, text),
            FinalAnswer(DONE),
        ]

        case = rng.choice([case for case in repository.cases if case.function == function.name])
        invented = rng.randint(0, _LARGEST_RESULT)
        prompt = f"{function.name}({case.arguments}) gives {invented} , expected {case.returned}"
        return Log(prompt, tuple(pieces))

    def texts(self, rng: random.Random) -> Iterator[str]:
        """Yield texts for the tokenizer: prompts, functions and lines."""
        for _ in range(_TOKENIZER_LOGS):
            log = self.write(rng)
            yield log.prompt
            for piece in log.pieces:
                if isinstance(piece, ToolCalls):
                    # the arguments as in a call, without the first argument's name
                    yield json.dumps(piece.calls[0].arguments).partition(": ")[2].strip('"}')
                else:
                    yield piece if isinstance(piece, str) else piece.text

    def _make(self, number: int) -> MadeRepository:
        return make_repository(number, self._config, self._splits)


def _call(name: str, /, **arguments: str | int) -> ToolCalls:
    return ToolCalls((ToolCall(name=name, arguments=dict(arguments)),))
