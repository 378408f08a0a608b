"""synthesize: writes questions with proven answers, and a teacher's trajectories for some of them.

Inputs: the knowledge artifact.
Output: tasks/{train,dev,heldout}.jsonl, trajectories.parquet, funnel.json, run.json
(measurements), and agent_texts.jsonl and negatives.jsonl where the profile asks for them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from espalier.chain import opened, provenance
from espalier.config import Profile
from espalier.environments import Family, FamilyQuestion, family_of
from espalier.environments.demonstrations import (
    Demonstrations,
    DetourSchedule,
    demonstrable,
    tempered_shares,
)
from espalier.environments.funnel import Funnel, summarize
from espalier.environments.mixins import (
    AgentTexts,
    KnowsEntities,
    Teacher,
    WritesAgentTexts,
    fact_of_task,
)
from espalier.records import (
    DataError,
    Draft,
    Manifest,
    Split,
    Tracker,
    publishing,
    write_agent_texts,
    write_tasks,
)
from espalier.records.trajectory import Trajectory, write_trajectories
from espalier.usage import used_since


def run(
    profile: Profile,
    inputs: Mapping[str, Path],
    output_dir: Path,
    tracker: Tracker,
    *,
    external_digests: Mapping[str, str] | None = None,
) -> Manifest:
    """Write tasks and trajectories.

    Raises:
        ArtifactError: the knowledge artifact is damaged.
        DataError: the source yields no question for a split, or the teacher cannot answer any.
    """
    started = time.perf_counter()
    origin = provenance("synthesize", profile, opened(inputs), external_digests)
    family, knowledge, funnel = family_of(profile), inputs["knowledge"], Funnel()
    questions = family.questions(knowledge, funnel, tracker)
    for split, found in questions.items():
        tracker.note(f"{split}: {len(found)} questions")
    trajectories: list[Trajectory] = []
    if isinstance(family, Teacher):
        trajectories = _demonstrated(family, family, questions, (knowledge, funnel), tracker)
    else:
        tracker.note(f"{family.name} has no teacher: there are no demonstrations")
    texts = AgentTexts([], [], {})
    if isinstance(family, WritesAgentTexts):
        texts = family.agent_texts(knowledge, questions, trajectories, funnel, tracker)
    summary = summarize(
        {split: [question.task for question in found] for split, found in questions.items()},
        family.report_groups,
        len(trajectories),
        profile.synthesis,
        family.hub_kinds(knowledge) if isinstance(family, KnowsEntities) else [],
        funnel,
    )
    with publishing(output_dir, origin) as draft:
        for split, found in questions.items():
            path = draft.path / "tasks" / f"{split}.jsonl"
            path.parent.mkdir(exist_ok=True)
            draft.rows[f"{split}_tasks"] = write_tasks(path, (q.task for q in found))
        path = draft.path / "trajectories.parquet"
        draft.rows["trajectories"] = write_trajectories(path, trajectories)
        for name, written in (("agent_texts", texts.texts), ("negatives", texts.negatives)):
            if written:
                path = draft.path / f"{name}.jsonl"
                draft.rows[name] = write_agent_texts(path, written)
        _write_json(draft, "funnel.json", summary)
        _write_json(draft, "run.json", used_since(started) | {"teacher": texts.teacher})
    for remark in funnel.remarks:
        tracker.note(remark)
    tracker.metrics({name: float(count) for name, count in draft.rows.items()})
    tracker.artifact(output_dir / "funnel.json")
    return draft.published


def _demonstrated(
    family: Family[Any],
    teacher: Teacher,
    questions: Mapping[Split, Sequence[FamilyQuestion]],
    told: tuple[Path, Funnel],
    tracker: Tracker,
) -> list[Trajectory]:
    """The teacher's trajectories of training questions."""
    config, train, (_, funnel) = family.profile.synthesis, questions["train"], told
    if family.profile.asks_own_knowledge:
        share, seed = config.demonstrated_share, family.profile.seed
        train = demonstrable(train, lambda task: fact_of_task(family.of(task), task), share, seed)
    with (
        teacher.teacher(*told) as demonstrate,
        tracker.progress("teacher trajectories", config.trajectories) as progress,
    ):
        detours = DetourSchedule(config.detour_share, teacher.detours)
        collector = Demonstrations(
            demonstrate, detours, family.stratum, family.profile.seed, funnel
        )
        heldout_strata = (family.stratum(question.task) for question in questions["heldout"])
        weights = tempered_shares(heldout_strata, config.demonstration_temperature)
        trajectories = collector.collect(train, weights, config.trajectories, progress)
    if not trajectories:
        raise DataError(
            f"synthesis: the teacher answered none of {len(train)} training tasks "
            f"({funnel.counts('teacher.rejected')}). Raise search.max_observation_words or "
            "search.top_k, so that a search result contains the answers; or give problems "
            "whose solutions have calculator notes, <<48/2=24>>."
        )
    return trajectories


def _write_json(draft: Draft, name: str, content: object) -> None:
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)
    (draft.path / name).write_text(text + "\n", encoding="utf-8")
