"""Repositories generated from a seed: modules whose functions call each other, with tests.

    README.md  stock.py  orders.py  prices.py  shelves.py  tests/test_stock.py ...

A repository's number decides its split. The names of functions are also assigned to splits, so that
no two splits share a name.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import NamedTuple

from espalier.config import SplitsConfig
from espalier.environments.family import dealt_split
from espalier.records import DataError, Split
from espalier_environments.software_repair.config import RepositoriesConfig
from espalier_environments.software_repair.steps import (
    ENDINGS,
    STEPS,
    WORDS,
    Step,
    ValueKind,
    Words,
    draw_argument,
    draw_operand,
)

_MODULES = 4
_FUNCTIONS_PER_MODULE = 4
_CASES = 6
"""Number of cases of each function, mutated or not."""
_SAME_RESULT = 2
"""Most cases of a function with the same result, so that a wrong line is detected."""
_DRAWS = 40
"""Most draws of arguments to find enough cases with different results."""


class Case(NamedTuple):
    """A call of a function of the repository, and what it returns."""

    module: str
    function: str
    arguments: str
    """Source text between the parentheses of the call."""
    returned: str
    """The result as written by `repr`."""

    @property
    def values(self) -> tuple[object, ...]:
        """The arguments as values."""
        return tuple(ast.literal_eval(f"[{self.arguments}]"))

    @property
    def test_name(self) -> str:
        """Name of the hidden test."""
        return f"{self.module}.{self.function}({self.arguments})"


@dataclass(frozen=True)
class MadeFunction:
    """A function of a generated repository."""

    module: str
    name: str
    kind: ValueKind
    parameters: tuple[str, ...]
    phrases: tuple[str, ...]
    lines: tuple[str, ...]
    """Lines of the body, without the function's indentation."""
    callee: str = ""
    """Name of the function that it calls; empty if none."""

    @property
    def source(self) -> str:
        """The source in the form of `ast.unparse`."""
        head = [f"def {self.name}({', '.join(self.parameters)}):"]
        doc = [f'    """{" , ".join(self.phrases)}"""']
        return "\n".join([*head, *doc, *(f"    {line}" for line in self.lines)])


@dataclass(frozen=True)
class MadeRepository:
    """A repository without a fault, and the calls of its hidden tests."""

    number: int
    domain: str
    modules: tuple[str, ...]
    functions: tuple[MadeFunction, ...]
    cases: tuple[Case, ...]

    def callers(self, name: str) -> list[str]:
        """Return the names of functions that call `name`."""
        return [function.name for function in self.functions if function.callee == name]

    def named(self, name: str) -> MadeFunction:
        """Return the function with that name."""
        return next(function for function in self.functions if function.name == name)

    def files(self, replaced: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return path -> content.

        Args:
            replaced: name of a function -> its replacement source.
        """
        sources = {one.name: one.source for one in self.functions} | dict(replaced or {})
        files = {
            "README.md": f"# {self.domain} {self.number}\n\nFunctions for {self.domain}, in "
            f"{', '.join(f'{module}.py' for module in self.modules)}. A docstring says what its "
            "function computes, step by step.\n"
        }
        for module in self.modules:
            own = [one for one in self.functions if one.module == module]
            imported = sorted({one.callee for one in own if one.callee})
            lines = [f"from {self.named(name).module} import {name}" for name in imported]
            head = "\n".join(lines) + "\n\n\n" if lines else ""
            files[f"{module}.py"] = head + "\n\n\n".join(sources[one.name] for one in own) + "\n"
            files[f"tests/test_{module}.py"] = self._visible_tests(own)
        return files

    def _visible_tests(self, functions: list[MadeFunction]) -> str:
        """Return a test per function that always passes: it compares no result."""
        module = functions[0].module
        lines = [
            "import unittest",
            "",
            f"import {module}",
            "",
            "",
            "class Tests(unittest.TestCase):",
        ]
        for function in functions:
            lines += [
                f"    def test_{function.name}_is_documented(self):",
                f"        self.assertTrue({module}.{function.name}.__doc__)",
                "",
            ]
        return "\n".join(lines).rstrip() + "\n"


def repository_split(number: int, config: RepositoriesConfig, splits: SplitsConfig) -> Split:
    """Return the split of a repository."""
    return dealt_split(f"repository {config.seed} {number}", splits)


def split_names(words: Words, splits: SplitsConfig, split: Split) -> list[str]:
    """Return the function names THING_ASPECT of a split; no other split has them."""
    names = [f"{thing}_{aspect}" for thing in words.things for aspect in words.aspects]
    return [name for name in names if dealt_split(f"function {name}", splits) == split]


def make_repository(
    number: int, config: RepositoriesConfig, splits: SplitsConfig
) -> MadeRepository:
    """Return the repository with that number; equal settings give equal repositories."""
    dice = random.Random(f"repository {config.seed} {number}")
    domain = dice.choice(config.domains)
    words = WORDS[domain]
    split = repository_split(number, config, splits)
    names = split_names(words, splits, split)
    if len(names) < _MODULES * _FUNCTIONS_PER_MODULE:
        raise DataError(
            f"the split {split} has {len(names)} names for functions, fewer than a repository has: "
            "give it a larger share in [splits]"
        )
    dice.shuffle(names)
    modules = tuple(dice.sample(words.modules, _MODULES))
    functions: list[MadeFunction] = []
    half = _MODULES * _FUNCTIONS_PER_MODULE // 2
    for place in range(_MODULES * _FUNCTIONS_PER_MODULE):
        module = modules[place * _MODULES // (_MODULES * _FUNCTIONS_PER_MODULE)]
        callees = [one for one in functions[:half] if one.module != module]
        # functions of the first half are called, those of the second half call
        calls = place >= half
        functions.append(
            _function(dice, module, names[place], words, config, callees if calls else [])
        )
    return MadeRepository(number, domain, modules, tuple(functions), tuple(_cases(dice, functions)))


def _function(
    dice: random.Random,
    module: str,
    name: str,
    words: Words,
    config: RepositoriesConfig,
    callees: list[MadeFunction],
) -> MadeFunction:
    kind = words.kind
    if kind == "text":
        parameters = tuple(words.parameters[: dice.choice((1, 3))])
    elif kind == "rows":
        parameters = ("numbers", *dice.sample(words.parameters, dice.randint(1, 2)))
    else:
        parameters = tuple(dice.sample(words.parameters, dice.randint(2, 3)))
    variable = dice.choice([one for one in words.variables if one not in parameters])
    phrases, lines = [parameters[0]], [f"{variable} = {parameters[0]}"]
    num_steps = dice.randint(1, config.max_steps)
    callee = dice.choice(callees) if callees and dice.random() < 0.75 else None
    call_at = dice.randrange(num_steps) if callee else -1
    for place in range(num_steps):
        if callee is not None and place == call_at:
            others = [
                _argument_text(dice, kind, n, parameters) for n in range(1, len(callee.parameters))
            ]
            phrases.append(" ".join(["as", callee.name, *(["with", *others] if others else [])]))
            lines.append(f"{variable} = {callee.name}({', '.join([variable, *others])})")
            continue
        phrase, line = _step(dice, kind, parameters, variable)
        phrases.append(phrase)
        lines.append(line)
    ending = ENDINGS[kind][0] if not callees and kind != "number" else dice.choice(ENDINGS[kind])
    x = draw_operand(dice, ending.operand, parameters[1:])
    if ending.phrase:
        phrases.append(ending.phrase.format(x=x))
    lines += [line.format(v=variable, x=x) for line in ending.lines]
    return MadeFunction(
        module, name, kind, parameters, tuple(phrases), tuple(lines), callee.name if callee else ""
    )


def _step(
    dice: random.Random, kind: ValueKind, parameters: tuple[str, ...], variable: str
) -> tuple[str, str]:
    offered: list[Step] = [
        step for step in STEPS[kind] if "{a}" not in step.line or len(parameters) > 2
    ]
    step = dice.choice(offered)
    x = draw_operand(dice, step.operand, () if kind == "text" else parameters[1:])
    filled = {
        "v": variable,
        "x": x,
        "a": parameters[len(parameters) - 1],
        "b": parameters[min(1, len(parameters) - 1)],
    }
    return step.phrase.format(**filled), step.line.format(**filled)


def _argument_text(
    dice: random.Random, kind: ValueKind, place: int, parameters: tuple[str, ...]
) -> str:
    """Return what is passed to a callee's parameter: a parameter, or a literal."""
    del place
    if kind == "text":
        return (
            repr(dice.choice(("a", "e", "o")))
            if len(parameters) < 3
            else dice.choice(parameters[1:])
        )
    return draw_operand(dice, "any", parameters[1:])


class Calls:
    """The functions of a repository, called in this process: none of the code is a policy's."""

    def __init__(self, functions: Sequence[MadeFunction]) -> None:
        self._names: dict[str, object] = {}
        self.define("\n".join(one.source for one in functions))

    def define(self, source: str) -> None:
        """Redefine functions; their callers then call the new ones."""
        exec(compile(source, "<repository>", "exec"), self._names)

    def outcome(self, function: str, arguments: Sequence[object]) -> str:
        """Return the `repr` of what a call returns, or `raises NAME`."""
        called = self._names[function]
        assert isinstance(called, FunctionType), "a repository has functions alone"
        try:
            return repr(called(*arguments))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            return f"raises {type(error).__name__}"


def _cases(dice: random.Random, functions: Sequence[MadeFunction]) -> Iterator[Case]:
    calls = Calls(functions)
    for function in functions:
        found: dict[str, Case] = {}
        for _ in range(_DRAWS):
            drawn = [draw_argument(dice, function.kind, n) for n in range(len(function.parameters))]
            outcome = calls.outcome(function.name, drawn)
            arguments = ", ".join(map(repr, drawn))
            often = sum(case.returned == outcome for case in found.values())
            if not outcome.startswith("raises") and often < _SAME_RESULT:
                found[arguments] = Case(function.module, function.name, arguments, outcome)
            if len(found) == _CASES:
                break
        yield from found.values()
