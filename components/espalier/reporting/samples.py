"""Some rows of each kind of data, as they are: questions, agent texts, demonstrations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from espalier.records import AgentText, Task, TextKind
from espalier.records.trajectory import Trajectory
from espalier.reporting.formats import visible, words
from espalier.reporting.material import Material
from espalier.reporting.transcripts import Passage, clipped, passage_of

_QUESTIONS_EACH, _TEXTS_EACH, _DEMONSTRATIONS_EACH = 2, 2, 1
_TITLE_CHARACTERS = 140

_KINDS: dict[TextKind, str] = {
    "planning": "Plans: the first action, nothing executed (FAS)",
    "reasoning": "Reasoning over knowledge (FAS)",
    "decision": "Decisions among options, with their outcome (HAS)",
    "negative": "Calls that must not be made",
}
_ORIGINS = {"webshaper": "drawn", "expansion": "grown layer by layer"}
"""How a question came about, by its task's source; others are a user's own and keep their name."""

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Sample:
    """One row: what it says, and what is known of it."""

    title: str
    passages: tuple[Passage, ...]
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """Some rows of one kind."""

    title: str
    total: int
    """Rows of the kind, of which a few are shown."""
    samples: tuple[Sample, ...]


def sample_groups(material: Material | None) -> tuple[SampleGroup, ...]:
    """Training questions by form, texts by kind, demonstrations; kinds that are not there not.

    The rows of a kind are drawn from its whole length, evenly: equal data give equal samples.
    """
    if material is None:
        return ()
    return (
        *_questions(material.tasks.get("train", [])),
        *_texts(material.texts),
        *_demonstrations(material.demonstrations),
    )


def spread(items: Sequence[ItemT], count: int) -> list[ItemT]:
    """At most `count` of the items, evenly from first to last."""
    if len(items) <= count:
        return list(items)
    return [items[place * len(items) // count] for place in range(count)]


def _questions(tasks: Sequence[Task]) -> Iterable[SampleGroup]:
    groups: dict[tuple[str, str, float], list[Task]] = defaultdict(list)
    for task in tasks:
        kind, steps = str(task.extra.get("kind", "")), task.metadata.difficulty or 0
        groups[task.metadata.source, kind, steps].append(task)
    for (source, kind, steps), found in sorted(groups.items()):
        origin = _ORIGINS.get(source, source)
        told = [words(kind)] if kind else []
        told += [f"{steps:g} step{'' if steps == 1 else 's'}"] if steps else []
        title = f"Questions, {origin}: {', '.join(told)}" if told else f"Questions, {origin}"
        shown = tuple(map(_question, spread(found, _QUESTIONS_EACH)))
        yield SampleGroup(visible(title), len(found), shown)


def _question(task: Task) -> Sample:
    facts = {
        "gold": "; ".join(task.verifier.gold),
        "query": str(task.extra.get("query", "")),
        "documents": ", ".join(_documents(task)),
        "task": task.task_id,
    }
    return Sample(
        _title(task.prompt[-1].content), tuple(map(passage_of, task.prompt)), _told(facts)
    )


def _documents(task: Task) -> list[str]:
    found = task.extra.get("evidence")
    return [str(name) for name in found] if isinstance(found, list) else []


def _texts(texts: Sequence[AgentText]) -> Iterable[SampleGroup]:
    """Each kind with each of its styles."""
    groups: dict[TextKind, dict[str, list[AgentText]]] = defaultdict(lambda: defaultdict(list))
    for text in texts:
        groups[text.kind][text.style].append(text)
    for kind, title in _KINDS.items():
        styles = groups.get(kind, {})
        shown = [t for style in sorted(styles) for t in spread(styles[style], _TEXTS_EACH)]
        if shown:
            total = sum(map(len, styles.values()))
            yield SampleGroup(title, total, tuple(map(_text, shown)))


def _text(text: AgentText) -> Sample:
    facts = {
        "style": words(text.style),
        "task": text.task_id,
        "documents": ", ".join(text.sources),
        "text": text.text_id,
    }
    passages = tuple(map(passage_of, (*text.prompt, *text.pieces)))
    return Sample(_title(text.prompt[-1].content), passages, _told(facts))


def _demonstrations(trajectories: Sequence[Trajectory]) -> Iterable[SampleGroup]:
    by_detour: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_detour[trajectory.detour].append(trajectory)
    shown = [
        trajectory
        for detour in sorted(by_detour)
        for trajectory in spread(by_detour[detour], _DEMONSTRATIONS_EACH)
    ]
    if shown:
        title = "Trajectories of the teacher, one for each detour"
        yield SampleGroup(title, len(trajectories), tuple(map(_demonstration, shown)))


def _demonstration(trajectory: Trajectory) -> Sample:
    prompts = [message.content for message in trajectory.messages if message.role == "user"]
    facts = {
        "answer": trajectory.answer or "nothing",
        "finish": words(trajectory.finish_reason.value),
        "detour": words(trajectory.detour),
        "task": trajectory.task_id,
    }
    title = _title(prompts[0] if prompts else trajectory.task_id)
    return Sample(title, tuple(map(passage_of, trajectory.messages)), _told(facts))


def _title(text: str) -> str:
    return visible(clipped(" ".join(text.split()), _TITLE_CHARACTERS))


def _told(facts: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, visible(clipped(text, 600))) for name, text in facts.items() if text)
