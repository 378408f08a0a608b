"""All parts of a set of questions, drawn by whoever was asked to, published as one artifact."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from espalier.config import Profile
from espalier.records import (
    DataError,
    Manifest,
    Provenance,
    Tracker,
    json_digest,
    open_artifact,
    publishing,
    work_dir,
)
from espalier.synthesis.bulk.order import Asked, Part, first_quotas, widened
from espalier.synthesis.bulk.part import Drawn, finished_part
from espalier.synthesis.bulk.workers import MakesParts, Workers


def draw_questions(
    profile: Profile, asked: Asked, output_dir: Path, tracker: Tracker, *, workers: Workers
) -> Manifest:
    """Write questions as JSON lines of tasks, one file a part.

    The same call continues a killed one, row by row.

    Raises:
        ArtifactError: the knowledge artifact is broken, or what was begun is of another order.
        DataError: the knowledge yields no question.
        EngineError: a worker was killed, or there is none.
    """
    knowledge = open_artifact(asked.knowledge)
    provenance = Provenance(
        producer="draw_questions",
        config_digest=json_digest(
            [
                profile.digest(("environment", "search", "synthesis")),
                asked.splits,
                asked.count,
                asked.parts,
            ]
        ),
        seed=profile.seed,
        inputs={"knowledge": knowledge.content},
    )
    work = _begun(work_dir(output_dir), provenance.config_digest, knowledge.content)
    drawn = _all_parts(profile, asked, work, tracker, workers)
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
    profile: Profile, asked: Asked, work: Path, tracker: Tracker, workers: Workers
) -> dict[Part, Drawn]:
    """Every part, in order; what some are short of, the others draw in another round."""
    quotas = first_quotas(asked, profile.splits)
    with workers(profile, asked, work) as make_parts:
        while True:
            drawn = _round(quotas, work, make_parts, tracker)
            # a killed command may have been in a later round: then there are rows beyond the quota
            rows = {part: min(drawn[part].rows, quota) for part, quota in quotas.items()}
            if (wider := widened(quotas, rows, asked.count)) == quotas:
                return drawn
            quotas = wider


def _round(
    quotas: Mapping[Part, int], work: Path, make_parts: MakesParts, tracker: Tracker
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
