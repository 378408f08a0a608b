"""synthesize: questions with proven answers, and a teacher's trajectories for some of them.

Enters: the knowledge artifact.
Leaves: tasks/{train,dev,heldout}.jsonl, trajectories.parquet, funnel.json; run.json (measured); and
where the profile asks for them agent_texts.jsonl and negatives.jsonl.
"""

from __future__ import annotations

import json
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from espalier.artifacts import (
    DataError,
    Draft,
    Manifest,
    Provenance,
    Tracker,
    open_artifact,
    publishing,
)
from espalier.config import Profile
from espalier.knowledge import KnowledgeGraph
from espalier.knowledge.documents import load_documents
from espalier.knowledge.search import SearchTool, documents_path
from espalier.rollout.trajectory import Trajectory, write_trajectories
from espalier.synthesis.agent_texts import Written, material_of, write_texts
from espalier.synthesis.demonstrations import Demonstrations
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.own_questions import WordTeacher
from espalier.synthesis.questions import make_questions
from espalier.synthesis.summary import summarize
from espalier.synthesis.task_making import Question, Split
from espalier.synthesis.teacher import Rejected, RouteTeacher
from espalier.tasks import write_agent_texts, write_tasks


@dataclass(frozen=True, slots=True)
class Inputs:
    """What synthesize reads."""

    knowledge: Path


def run(profile: Profile, inputs: Inputs, output_dir: Path, tracker: Tracker) -> Manifest:
    """Write tasks and trajectories.

    Raises:
        ArtifactError: the knowledge artifact is broken.
        DataError: the source yields no question for a split, or the teacher cannot answer any.
    """
    started = time.monotonic()
    knowledge = open_artifact(inputs.knowledge)
    graph = KnowledgeGraph.load(inputs.knowledge)
    funnel = Funnel()
    questions = make_questions(profile, inputs.knowledge, graph, funnel)
    for split, found in questions.items():
        tracker.note(f"{split}: {len(found)} questions")
    trajectories = _demonstrations(profile, inputs.knowledge, questions, funnel, tracker)
    written = _agent_texts(profile, inputs.knowledge, questions, trajectories, funnel, tracker)
    provenance = Provenance(
        producer="synthesize",
        config_digest=profile.stage_digest("synthesize"),
        seed=profile.seed,
        inputs={"knowledge": knowledge.content},
    )
    with publishing(output_dir, provenance) as draft:
        for split, found in questions.items():
            path = draft.path / "tasks" / f"{split}.jsonl"
            path.parent.mkdir(exist_ok=True)
            draft.rows[f"{split}_tasks"] = write_tasks(path, (q.task for q in found))
        path = draft.path / "trajectories.parquet"
        draft.rows["trajectories"] = write_trajectories(path, trajectories)
        _write_agent_texts(draft, written)
        summary = summarize(questions, trajectories, profile.synthesis, graph, funnel)
        _write_json(draft, "funnel.json", summary)
        _write_json(draft, "run.json", _measured(started) | {"teacher": written.teacher})
    for remark in funnel.remarks:
        tracker.note(remark)
    tracker.metrics({name: float(count) for name, count in draft.rows.items()})
    tracker.artifact(output_dir / "funnel.json")
    return draft.published


def _demonstrations(
    profile: Profile,
    knowledge: Path,
    questions: dict[Split, list[Question]],
    funnel: Funnel,
    tracker: Tracker,
) -> list[Trajectory]:
    search = SearchTool.open(knowledge, "train", profile.search)
    by_route = RouteTeacher(search, profile.search.max_observation_words, profile.seed)
    by_words = WordTeacher(search, load_documents(documents_path(knowledge, "train")))

    def demonstrate(question: Question, detour_kind: str) -> Trajectory | Rejected:
        if question.route is None:
            return by_words.demonstrate(question.task)
        return by_route.demonstrate(question.task, question.route, detour_kind)

    config = profile.synthesis
    collector = Demonstrations(demonstrate, config.detour_share, profile.seed, funnel)
    with tracker.progress("teacher trajectories", config.trajectories) as progress:
        trajectories = collector.collect(
            questions["train"], questions["heldout"], config.trajectories, progress
        )
    if not trajectories:
        raise DataError(
            f"synthesis: the teacher answered none of {len(questions['train'])} training tasks "
            f"({funnel.counts('teacher.rejected')}). Raise search.max_observation_words or "
            "search.top_k, so that a search shows what the questions ask for."
        )
    return trajectories


def _agent_texts(
    profile: Profile,
    knowledge: Path,
    questions: dict[Split, list[Question]],
    trajectories: list[Trajectory],
    funnel: Funnel,
    tracker: Tracker,
) -> Written:
    if not (profile.agent_texts.pretraining_texts or profile.agent_texts.negatives):
        return Written([], [], {})
    tasks = [question.task for question in questions["train"]]
    material = material_of(profile, knowledge, tasks, trajectories)
    return write_texts(profile, material, funnel, tracker)


def _write_agent_texts(draft: Draft, written: Written) -> None:
    for name, texts in (("agent_texts", written.texts), ("negatives", written.negatives)):
        if texts:
            draft.rows[name] = write_agent_texts(draft.path / f"{name}.jsonl", texts)


def _measured(started: float) -> dict[str, object]:
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": round(time.monotonic() - started, 3),
        "peak_rss_mb": round(peak_kib / 1024, 1),
    }


def _write_json(draft: Draft, name: str, content: object) -> None:
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)
    (draft.path / name).write_text(text + "\n", encoding="utf-8")
