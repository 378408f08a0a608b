"""Who draws the parts of an order: this process, or others beside it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, partial
from pathlib import Path

from espalier.config import Profile
from espalier.records import EngineError
from espalier.synthesis.bulk.making import PartMaker
from espalier.synthesis.bulk.order import Asked, Part
from espalier.synthesis.bulk.part import Drawn

MakesParts = Callable[[Mapping[Part, int]], Generator[tuple[Part, Drawn]]]
"""Draws parts up to their quotas, and hands each over when it is finished."""

Workers = Callable[[Profile, Asked, Path], AbstractContextManager[MakesParts]]
"""Those who draw an order, each part into its folder inside the one given; gone after the block."""


def local_workers(processes: int) -> Workers:
    """Workers on this machine: this process itself where one is asked for."""
    return _this_process if processes == 1 else partial(_processes, processes)


@contextmanager
def _this_process(profile: Profile, asked: Asked, work: Path) -> Generator[MakesParts]:
    make = lru_cache(maxsize=1)(lambda: PartMaker(profile, asked).make)

    def one_by_one(quotas: Mapping[Part, int]) -> Generator[tuple[Part, Drawn]]:
        for part, quota in quotas.items():
            yield part, make()(part, quota, work / part.name)

    yield one_by_one


@contextmanager
def _processes(count: int, profile: Profile, asked: Asked, work: Path) -> Generator[MakesParts]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context) as pool:

        def side_by_side(quotas: Mapping[Part, int]) -> Generator[tuple[Part, Drawn]]:
            text = profile.model_dump_json()
            futures = {
                pool.submit(made_part, text, asked, part, quota, work / part.name): part
                for part, quota in quotas.items()
            }
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BrokenProcessPool as error:
                raise EngineError(
                    "a process that drew questions was killed, perhaps for memory; the same "
                    "command goes on after the last row written. Ask for fewer processes"
                ) from error

        yield side_by_side


def made_part(profile_json: str, asked: Asked, part: Part, quota: int, directory: Path) -> Drawn:
    """Draw a part in a process that is given many of an order, and loads its knowledge once."""
    return _maker(profile_json, asked).make(part, quota, directory)


@lru_cache(maxsize=1)
def _maker(profile_json: str, asked: Asked) -> PartMaker:
    return PartMaker(Profile.model_validate_json(profile_json), asked)
