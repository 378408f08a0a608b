"""All parts of a set of questions, on as many processes as asked for, published as one artifact."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from espalier.artifacts import (
    DataError,
    EngineError,
    Manifest,
    Provenance,
    Tracker,
    json_digest,
    open_artifact,
    publishing,
    work_dir,
)
from espalier.config import Profile
from espalier.synthesis.bulk.making import PartMaker
from espalier.synthesis.bulk.order import Asked, Part, first_quotas, widened
from espalier.synthesis.bulk.part import Drawn, finished_part

_MakesParts = Callable[[Mapping[Part, int]], Generator[tuple[Part, Drawn]]]
"""Draws parts up to their quotas, and hands each over when it is finished."""


def draw_questions(
    profile: Profile, asked: Asked, output_dir: Path, tracker: Tracker, *, processes: int
) -> Manifest:
    """Write questions as JSON lines of tasks, one file a part.

    The same call continues a killed one, row by row.

    Raises:
        ArtifactError: the knowledge artifact is broken, or what was begun is of another order.
        DataError: the knowledge yields no question.
        EngineError: a process was killed.
    """
    knowledge = open_artifact(asked.knowledge)
    provenance = Provenance(
        producer="draw_questions",
        config_digest=json_digest(
            [profile.stage_digest("synthesize"), asked.splits, asked.count, asked.parts]
        ),
        seed=profile.seed,
        inputs={"knowledge": knowledge.content},
    )
    work = _begun(work_dir(output_dir), provenance.config_digest, knowledge.content)
    drawn = _all_parts(profile, asked, work, tracker, processes)
    if not any(part.rows for part in drawn.values()):
        raise DataError(
            f"{asked.knowledge}: yields no question of split {' or '.join(asked.splits)}; give "
            "more triples"
        )
    with publishing(output_dir, provenance) as draft:
        for part, found in drawn.items():
            # linked and not moved: a kill before the publishing would take moved rows with it
            file = draft.path / f"{part.name}.jsonl"
            file.hardlink_to(work / part.name / "rows.jsonl")
            draft.rows[part.name] = found.rows
        summary = {
            "asked": asked.count,
            "rows": sum(part.rows for part in drawn.values()),
            "judged": sum(part.draws for part in drawn.values()),
            "ended_signatures": sum(part.ended_signatures for part in drawn.values()),
        }
        (draft.path / "funnel.json").write_text(json.dumps(summary, indent=1) + "\n", "utf-8")
    if summary["rows"] < asked.count:
        tracker.note(f"{summary['rows']} of {asked.count} questions; the knowledge yields no more")
    tracker.metrics({name: float(value) for name, value in summary.items()})
    return draft.published


def _begun(work: Path, *digests: str) -> Path:
    """The folder of this very order inside `work`; what other orders left there is removed."""
    own = work / json_digest(digests)[:16]
    for other in work.iterdir() if work.is_dir() else ():
        if other != own:
            shutil.rmtree(other)
    own.mkdir(parents=True, exist_ok=True)
    return own


def _all_parts(
    profile: Profile, asked: Asked, work: Path, tracker: Tracker, processes: int
) -> dict[Part, Drawn]:
    """Every part, in order; what some are short of, the others draw in another round."""
    quotas = first_quotas(asked, profile.splits)
    with _makers(profile, asked, work, processes) as make_parts:
        while True:
            drawn = _round(quotas, work, make_parts, tracker)
            # a killed command may have been in a later round: then there are rows beyond the quota
            rows = {part: min(drawn[part].rows, quota) for part, quota in quotas.items()}
            if (wider := widened(quotas, rows, asked.count)) == quotas:
                return drawn
            quotas = wider


def _round(
    quotas: Mapping[Part, int], work: Path, make_parts: _MakesParts, tracker: Tracker
) -> dict[Part, Drawn]:
    """Every part up to its quota, or as far as it goes; a finished one is left alone."""
    drawn: dict[Part, Drawn] = {}
    with tracker.progress("parts of questions", len(quotas)) as progress:
        for part, quota in quotas.items():
            if (finished := finished_part(work / part.name, quota)) is not None:
                drawn[part] = finished
        progress.advance(len(drawn))
        for part, found in make_parts({p: q for p, q in quotas.items() if p not in drawn}):
            drawn[part] = found
            progress.advance(1)
    return {part: drawn[part] for part in quotas}


@contextmanager
def _makers(profile: Profile, asked: Asked, work: Path, processes: int) -> Generator[_MakesParts]:
    """This process, or others that take one part after the other."""
    if processes == 1:
        make = lru_cache(maxsize=1)(lambda: PartMaker(profile, asked).make)

        def one_by_one(quotas: Mapping[Part, int]) -> Generator[tuple[Part, Drawn]]:
            for part, quota in quotas.items():
                yield part, make()(part, quota, work / part.name)

        yield one_by_one
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:

        def side_by_side(quotas: Mapping[Part, int]) -> Generator[tuple[Part, Drawn]]:
            text = profile.model_dump_json()
            futures = {
                pool.submit(_made, text, asked, part, quota, work / part.name): part
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


def _made(profile_json: str, asked: Asked, part: Part, quota: int, directory: Path) -> Drawn:
    return _maker(profile_json, asked).make(part, quota, directory)


@lru_cache(maxsize=1)
def _maker(profile_json: str, asked: Asked) -> PartMaker:
    """Of a worker, for all parts that it is given."""
    return PartMaker(Profile.model_validate_json(profile_json), asked)
