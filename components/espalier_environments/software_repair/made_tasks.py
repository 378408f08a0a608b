"""Tasks over generated repositories: a fault, an issue with a symptom, and hidden tests."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import NamedTuple

from espalier.config import SplitsConfig
from espalier.environments.family import make_task
from espalier.records import JsonObject, Split, Task
from espalier_environments.software_repair.config import RepositoriesConfig
from espalier_environments.software_repair.diffs import diff_of
from espalier_environments.software_repair.judging import Snapshots
from espalier_environments.software_repair.leaks import LeakError
from espalier_environments.software_repair.mutations import Mutation, mutations
from espalier_environments.software_repair.repositories import (
    Calls,
    Case,
    MadeFunction,
    MadeRepository,
    make_repository,
    repository_split,
)

_LEAST_TESTS = 20
_LEAST_FAILING = 3
"""One failing test is in the issue, and the others cannot be guessed from it."""
_REPOSITORIES = 200_000
"""How many repository numbers are tried; enough for every split with a share in `[splits]`."""


class _Fault(NamedTuple):
    """A mutation of a function that hidden tests detect, and the call reported in the issue."""

    function: MadeFunction
    mutation: Mutation
    reported: Case
    got: str
    failing: tuple[Case, ...]
    passing: tuple[Case, ...]


def made_tasks(
    config: RepositoriesConfig, splits: SplitsConfig, split: Split, count: int, family: str
) -> list[Task]:
    """Return up to `count` tasks of the split's repositories, the same for equal settings."""
    return list(itertools.islice(_tasks(config, splits, split, family), count))


def _tasks(
    config: RepositoriesConfig, splits: SplitsConfig, split: Split, family: str
) -> Iterator[Task]:
    for number in range(_REPOSITORIES):
        if repository_split(number, config, splits) != split:
            continue
        repository = make_repository(number, config, splits)
        for fault in _faults(repository, config):
            task = _task(repository, fault, split, family)
            try:
                Snapshots(None).checked(task)
            except LeakError:
                continue  # another function has the missing lines, and so gives them away
            yield task


def _faults(repository: MadeRepository, config: RepositoriesConfig) -> Iterator[_Fault]:
    """Yield faults in distinct functions, in random order."""
    dice = random.Random(f"faults {config.seed} {repository.number}")
    functions = list(repository.functions)
    dice.shuffle(functions)
    calls = Calls(functions)
    found = 0
    for function in functions:
        if found == config.tasks_per_repository:
            return
        in_callee = dice.random() < config.callee_share
        if in_callee and not repository.callers(function.name):
            continue
        # ordered by kind at random: otherwise frequent kinds would dominate
        offered = mutations(function.source, config.mutations)
        kinds = sorted({one.kind for one in offered})
        shares = {kind: dice.random() for kind in kinds}
        offered = sorted(offered, key=lambda one: (shares[one.kind], dice.random()))
        noticed = (
            _noticed(dice, repository, calls, function, one, in_callee=in_callee) for one in offered
        )
        fault = next((one for one in noticed if one is not None), None)
        if fault is not None:
            found += 1
            yield fault


def _noticed(
    dice: random.Random,
    repository: MadeRepository,
    calls: Calls,
    function: MadeFunction,
    mutation: Mutation,
    *,
    in_callee: bool,
) -> _Fault | None:
    """Return the fault; None if too few tests detect it or none fits the issue."""
    affected = {function.name, *repository.callers(function.name)}
    calls.define(_spoilt(function, mutation))
    got = {
        case: calls.outcome(case.function, case.values)
        for case in repository.cases
        if case.function in affected
    }
    calls.define(function.source)
    failing = [case for case in repository.cases if got.get(case, case.returned) != case.returned]
    passing = [case for case in repository.cases if got.get(case, case.returned) == case.returned]
    told = [case for case in failing if (case.function != function.name) == in_callee]
    enough = len(failing) >= _LEAST_FAILING and len(failing) + len(passing) >= _LEAST_TESTS
    if not told or not enough or not passing:
        return None
    reported = dice.choice(told)
    return _Fault(function, mutation, reported, got[reported], tuple(failing), tuple(passing))


def _task(repository: MadeRepository, fault: _Fault, split: Split, family: str) -> Task:
    function, mutation, told = fault.function, fault.mutation, fault.reported
    broken = repository.files({function.name: _spoilt(function, mutation)})
    path = f"{function.module}.py"
    right = repository.files()[path]
    gives = fault.got if fault.got.startswith("raises") else f"gives {fault.got}"
    call = f"{told.function}({told.arguments})"
    in_callee = told.function != function.name
    lines = broken[path].splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"def {function.name}("))
    arguments: JsonObject = {
        "files": dict(broken),
        "cases": [list(case) for case in (*fault.failing, *fault.passing)],
        "fail_to_pass": [case.test_name for case in fault.failing],
        "pass_to_pass": [case.test_name for case in fault.passing],
        "fault": {
            "path": path,
            "function": function.name,
            "line": lines.index(mutation.wrong, start) + 1,
            "right": mutation.right,
            "reported": told.function,
        },
    }
    return make_task(
        family,
        f"{call} {gives} , expected {told.returned}",
        gold=(diff_of({path: broken[path]}, {path: right}),),
        split=split,
        source="made repository",
        key=f"{repository.number} {function.name} {mutation.line} {mutation.wrong.strip()}",
        kind="hidden_tests",
        arguments=arguments,
        metadata={
            "difficulty": 2.0 if in_callee else 1.0,
            "pattern": mutation.kind,
            "extra": {
                "kind": mutation.kind,
                "where": "callee" if in_callee else "function",
                "entities": sorted({function.name, told.function}),
            },
        },
    )


def _spoilt(function: MadeFunction, mutation: Mutation) -> str:
    lines = function.source.splitlines()
    lines[mutation.line] = mutation.wrong
    return "\n".join(lines)
