"""synthesize: questions with proven answers, and a teacher's trajectories for some of them.

Enters: the knowledge artifact.
Leaves: tasks/{train,dev,heldout}.jsonl, trajectories.parquet, funnel.json; run.json (measured); and
where the profile asks for them agent_texts.jsonl and negatives.jsonl.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from espalier.artifacts import (
    DataError,
    Draft,
    Manifest,
    Provenance,
    Tracker,
    open_artifact,
    publishing,
)
from espalier.config import Profile, PythonMathConfig, SynthesisConfig
from espalier.environments import opened_environments
from espalier.knowledge import KnowledgeGraph
from espalier.knowledge.documents import load_documents
from espalier.knowledge.search import SearchTool, documents_path
from espalier.rollout.trajectory import Trajectory, write_trajectories
from espalier.synthesis.agent_texts import Written, material_of, write_texts
from espalier.synthesis.arithmetic.questions import make_math_questions
from espalier.synthesis.arithmetic.teacher import UNKNOWN_NAME, ProgramTeacher
from espalier.synthesis.demonstrations import Asked, Demonstrate, Demonstrations, Q
from espalier.synthesis.detours import KINDS
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.own_questions import WordTeacher
from espalier.synthesis.questions import make_questions
from espalier.synthesis.rollouts import rollout_teacher
from espalier.synthesis.summary import summarize
from espalier.synthesis.task_making import Question, Split
from espalier.synthesis.teacher import Rejected, RouteTeacher
from espalier.tasks import write_agent_texts, write_tasks


@dataclass(frozen=True, slots=True)
class Inputs:
    """What synthesize reads."""

    knowledge: Path


class Made(NamedTuple):
    """What is written down."""

    questions: Mapping[Split, Sequence[Asked]]
    trajectories: list[Trajectory]
    written: Written
    hub_kinds: list[str]
    """Kinds of entities that every split shares."""

    def summary(self, config: SynthesisConfig, funnel: Funnel) -> dict[str, object]:
        """The content of funnel.json."""
        return summarize(self.questions, self.trajectories, config, self.hub_kinds, funnel)


def run(profile: Profile, inputs: Inputs, output_dir: Path, tracker: Tracker) -> Manifest:
    """Write tasks and trajectories.

    Raises:
        ArtifactError: the knowledge artifact is broken.
        DataError: the source yields no question for a split, or the teacher cannot answer any.
    """
    started = time.monotonic()
    knowledge = open_artifact(inputs.knowledge)
    funnel = Funnel()
    make = _mathematics if isinstance(profile.environment, PythonMathConfig) else _search
    made = make(profile, inputs.knowledge, funnel, tracker)
    provenance = Provenance(
        producer="synthesize",
        config_digest=profile.stage_digest("synthesize"),
        seed=profile.seed,
        inputs={"knowledge": knowledge.content},
    )
    with publishing(output_dir, provenance) as draft:
        for split, found in made.questions.items():
            path = draft.path / "tasks" / f"{split}.jsonl"
            path.parent.mkdir(exist_ok=True)
            draft.rows[f"{split}_tasks"] = write_tasks(path, (q.task for q in found))
        path = draft.path / "trajectories.parquet"
        draft.rows["trajectories"] = write_trajectories(path, made.trajectories)
        _write_agent_texts(draft, made.written)
        _write_json(draft, "funnel.json", made.summary(profile.synthesis, funnel))
        _write_json(draft, "run.json", _measured(started) | {"teacher": made.written.teacher})
    for remark in funnel.remarks:
        tracker.note(remark)
    tracker.metrics({name: float(count) for name, count in draft.rows.items()})
    tracker.artifact(output_dir / "funnel.json")
    return draft.published


def _search(profile: Profile, knowledge: Path, funnel: Funnel, tracker: Tracker) -> Made:
    """Questions over the knowledge, and searches that answer them."""
    graph = KnowledgeGraph.load(knowledge)
    questions = make_questions(profile, knowledge, graph, funnel)
    _tell(questions, tracker)
    with _searching_teacher(profile, knowledge, graph, funnel) as demonstrate:
        collector = Demonstrations(demonstrate, profile.synthesis, KINDS, profile.seed, funnel)
        trajectories = _collected(questions, collector, profile, funnel, tracker)
    written = _agent_texts(profile, knowledge, questions, trajectories, funnel, tracker)
    hub_kinds = sorted({entity.kind for entity in graph.entities.values() if entity.hub})
    return Made(questions, trajectories, written, hub_kinds)


def _mathematics(profile: Profile, knowledge: Path, funnel: Funnel, tracker: Tracker) -> Made:
    """Problems, and programs that solve them, run where a policy's are."""
    questions = make_math_questions(profile, knowledge, funnel)
    _tell(questions, tracker)
    with opened_environments(profile, knowledge) as environments_over:
        teacher = ProgramTeacher(environments_over("train"))
        collector = Demonstrations(
            teacher.demonstrate, profile.synthesis, (UNKNOWN_NAME,), profile.seed, funnel
        )
        trajectories = _collected(questions, collector, profile, funnel, tracker)
    return Made(questions, trajectories, Written([], [], {}), [])


def _tell(questions: Mapping[Split, Sequence[Asked]], tracker: Tracker) -> None:
    for split, found in questions.items():
        tracker.note(f"{split}: {len(found)} questions")


@contextmanager
def _searching_teacher(
    profile: Profile, knowledge: Path, graph: KnowledgeGraph, funnel: Funnel
) -> Generator[Demonstrate[Question]]:
    search = SearchTool.open(knowledge, "train", profile.search)
    documents = load_documents(documents_path(knowledge, "train"))
    if profile.synthesis.solver == "teacher":
        with rollout_teacher(profile, graph, documents, search, funnel) as by_rollouts:
            yield lambda question, _: by_rollouts.demonstrate(question.task)
        return
    by_route = RouteTeacher(search, profile.search.max_observation_words, profile.seed)
    by_words = WordTeacher(search, documents)

    def demonstrate(question: Question, detour_kind: str) -> Trajectory | Rejected:
        if question.route is None:
            return by_words.demonstrate(question.task)
        return by_route.demonstrate(question.task, question.route, detour_kind)

    yield demonstrate


def _collected(
    questions: Mapping[Split, Sequence[Q]],
    collector: Demonstrations[Q],
    profile: Profile,
    funnel: Funnel,
    tracker: Tracker,
) -> list[Trajectory]:
    count = profile.synthesis.trajectories
    with tracker.progress("teacher trajectories", count) as progress:
        trajectories = collector.collect(questions["train"], questions["heldout"], count, progress)
    if not trajectories:
        raise DataError(
            f"synthesis: the teacher answered none of {len(questions['train'])} training tasks "
            f"({funnel.counts('teacher.rejected')}). Raise search.max_observation_words or "
            "search.top_k, so that a search shows what the questions ask for; or give problems "
            "whose solutions have calculator notes, <<48/2=24>>."
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
