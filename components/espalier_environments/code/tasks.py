"""Programming tasks made with `grammar`: drawn at random, assigned to splits, and given tests.

Two functions are the same task if they return the same for each of many fixed inputs, whatever
their programs. The digest of these return values decides the split of the task and all its
wordings.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

from espalier.config import SplitsConfig, SynthesisConfig
from espalier.environments.family import dealt_split, make_task
from espalier.environments.funnel import apportion
from espalier.records import Split, Task
from espalier_environments.code.config import CodeConfig
from espalier_environments.code.grammar import Chain, Kind, draw_chain, draw_input
from espalier_environments.code.unit_tests import UnitTests

FUNCTION = "f"
_BATTERY_SIZE = 40
_DRY_AFTER = 1_500
"""Consecutive refused draws after which there are no more chains of a length; longer ones take
their place."""
_TEST_DRAWS = 20


def made_tasks(  # noqa: PLR0913 (what a task is drawn from)
    settings: CodeConfig,
    synthesis: SynthesisConfig,
    splits: SplitsConfig,
    split: Split,
    count: int,
    *,
    seed: int,
    family: str,
) -> list[Task]:
    """Return up to `count` distinct tasks of a split; depends on the seed only."""
    rng = random.Random(f"{seed}/{split}/code")
    tasks: list[Task] = []
    seen: set[str] = set()
    weights = {str(n): share for n, share in enumerate(synthesis.chain_weights, 1) if share}
    wanted = 0
    for steps, share in apportion(weights, count).items():
        wanted += share
        missing = wanted - len(tasks)
        for chain in _chains(settings.kinds, int(steps), splits, split, rng, seen, missing):
            tests = _tests(chain, settings, rng)
            if tests is not None:
                tasks.append(_task(chain, tests, split, family, rng))
    rng.shuffle(tasks)
    return tasks


def _chains(  # noqa: PLR0913 (what a chain is drawn from)
    kinds: Sequence[Kind],
    num_steps: int,
    splits: SplitsConfig,
    split: Split,
    rng: random.Random,
    seen: set[str],
    count: int,
) -> Iterator[Chain]:
    found = misses = 0
    while found < count and misses < _DRY_AFTER:
        chain = draw_chain(rng.choice(kinds), num_steps, rng)
        key = behaviour(chain)
        if key in seen or dealt_split(key, splits) != split or not _every_step_matters(chain, key):
            misses += 1
            continue
        seen.add(key)
        found += 1
        misses = 0
        yield chain


@lru_cache(maxsize=50_000)
def behaviour(chain: Chain) -> str:
    """Return a digest of what the function returns for the fixed inputs of its kind."""
    returned = [repr(chain(values)) for values in _battery(chain.kind)]
    return hashlib.sha256("\n".join([chain.kind, *returned]).encode()).hexdigest()


@cache
def _battery(kind: Kind) -> tuple[list[int] | list[str], ...]:
    rng = random.Random("battery")
    return tuple(draw_input(kind, rng) for _ in range(_BATTERY_SIZE))


def _every_step_matters(chain: Chain, key: str) -> bool:
    """Return whether no near miss is the same function, and its value varies enough."""
    returned = {repr(chain(values)) for values in _battery(chain.kind)}
    return len(returned) > _LEAST_OUTPUTS and all(
        behaviour(other) != key for other in chain.near_misses
    )


_LEAST_OUTPUTS = 4
"""The function must have more different values over the fixed inputs than this."""


def _tests(chain: Chain, settings: CodeConfig, rng: random.Random) -> UnitTests | None:
    """Return tests that no near miss passes; None if none are found."""
    near_misses = chain.near_misses
    for _ in range(_TEST_DRAWS):
        inputs = [draw_input(chain.kind, rng) for _ in range(settings.hidden_tests)]
        expected = [chain(values) for values in inputs]
        if all([other(values) for values in inputs] != expected for other in near_misses):
            shown = [draw_input(chain.kind, rng) for _ in range(settings.visible_tests)]
            return UnitTests(
                functions={FUNCTION: FUNCTION},
                hidden=tuple(_statement(chain, values) for values in inputs),
                visible=tuple(_statement(chain, values) for values in shown),
            )
    return None


def _statement(chain: Chain, values: list[int] | list[str]) -> str:
    return f"assert {FUNCTION}({values!r}) == {chain(values)!r}"


def _task(chain: Chain, tests: UnitTests, split: Split, family: str, rng: random.Random) -> Task:
    labels = [step.operation.label for step in (*chain.steps, chain.end)]
    return make_task(
        family,
        chain.words(rng),
        gold=(chain.program,),
        split=split,
        source="made",
        key=behaviour(chain),
        kind="unit_tests",
        arguments=tests.arguments(),
        metadata={
            "difficulty": len(chain.steps),
            "pattern": " ".join(labels),
            "extra": {"kind": chain.kind, "query": behaviour(chain)},
        },
    )
