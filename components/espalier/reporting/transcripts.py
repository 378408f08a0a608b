"""Trajectories and samples of the data, split by writer (prompt, action, observation)."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from espalier.records import AgentText, Message, Task, TextKind
from espalier.records.trajectory import Trajectory, read_trajectories
from espalier.reporting.formats import visible, words
from espalier.reporting.run_directory import RunDirectory, TrainingRows
from espalier.reporting.tables import ReportTable

SHOWN = 20
_MAX_CHARACTERS = 6000
"""Limit per message. Episodes have a few hundred tokens, so only endless repetition is cut."""

_TAG = re.compile(r"(</?(?:think|search|information|answer)>)")
_STAGES = (
    ("evaluate", "held-out questions, answered in evaluation"),
    ("train", "training questions, sampled in the last step"),
    ("validate", "teacher demonstrations that passed validation"),
    ("synthesize", "teacher demonstrations, not yet validated"),
)
_WRITER = {"assistant": "action", "tool": "observation", "user": "prompt", "system": "prompt"}


@dataclass(frozen=True, slots=True)
class TaggedText:
    """A piece of a message: a tag, or text with the name of the tag around it (or "")."""

    inside: str
    text: str
    is_tag: bool = False


@dataclass(frozen=True, slots=True)
class Passage:
    """One message; its writer is `prompt`, `action` (the policy) or `observation`."""

    writer: str
    spans: tuple[TaggedText, ...]


@dataclass(frozen=True, slots=True)
class MaskRun:
    """Consecutive tokens of one writer, for the coloured strip that shows the action mask."""

    writer: str
    tokens: int


@dataclass(frozen=True, slots=True)
class TrajectoryView:
    """One trajectory, prepared for the page."""

    title: str
    question: str
    answer: str
    gold: str
    is_correct: bool
    reward: float
    terms: tuple[tuple[str, float], ...]
    finish_reason: str
    task_id: str
    detour: str
    tool_calls: int
    passages: tuple[Passage, ...]
    strip: tuple[MaskRun, ...]
    """Empty if the trajectory has no tokens (a teacher's)."""
    mask_note: str


def newest_transcripts(run: RunDirectory) -> tuple[str, tuple[TrajectoryView, ...]]:
    """The latest stage that has trajectories, in words, and its first twenty."""
    gold = _gold_answers(run)
    for stage, source in _STAGES:
        artifact = run.artifacts.get(stage)
        path = artifact.file("trajectories.parquet") if artifact else None
        if path is None:
            continue
        trajectories = read_trajectories(path)[:SHOWN]
        if trajectories:
            return source, tuple(transcribe(t, gold.get(t.task_id, "")) for t in trajectories)
    return "", ()


def transcribe(trajectory: Trajectory, gold: str) -> TrajectoryView:
    """Split a trajectory into passages by writer and spans by tag."""
    prompts = [m.content for m in trajectory.messages if m.role == "user"]
    question = visible(prompts[0]) if prompts else trajectory.task_id
    strip = mask_runs(trajectory)
    acted = sum(trajectory.action_mask)
    total = len(trajectory.token_ids)
    return TrajectoryView(
        title=clipped(question, 160),
        question=question,
        answer="" if trajectory.answer is None else visible(trajectory.answer),
        gold=visible(gold),
        is_correct=trajectory.reward.get("outcome", 0.0) > 0,
        reward=trajectory.total_reward,
        terms=tuple((words(visible(name)), value) for name, value in trajectory.reward.items()),
        finish_reason=words(trajectory.finish_reason.value),
        task_id=visible(trajectory.task_id),
        detour=words(visible(trajectory.detour)),
        tool_calls=len(trajectory.tool_results),
        passages=tuple(map(passage_of, trajectory.messages)),
        strip=strip,
        mask_note=f"{acted} of {total} tokens are the policy's own ({100 * acted / total:.0f} %)"
        if total
        else "",
    )


def mask_runs(trajectory: Trajectory) -> tuple[MaskRun, ...]:
    """Group tokens by writer: prompt up to the first action, then action or observation."""
    mask = trajectory.action_mask
    first = mask.index(1) if 1 in mask else len(mask)
    writers = (
        "action" if acted else "prompt" if place < first else "observation"
        for place, acted in enumerate(mask)
    )
    return tuple(MaskRun(writer, len(list(tokens))) for writer, tokens in groupby(writers))


def passage_of(message: Message) -> Passage:
    """A message with its writer, invisible characters spelled out."""
    text = visible(clipped(_as_text(message), _MAX_CHARACTERS))
    spans: list[TaggedText] = []
    inside = ""
    for piece in _TAG.split(text):
        is_tag = _TAG.fullmatch(piece) is not None
        name = piece.strip("</>") if is_tag else inside
        if is_tag:
            inside = "" if piece.startswith("</") else name
        if piece:
            spans.append(TaggedText(name, piece, is_tag))
    return Passage(_WRITER[message.role], tuple(spans))


def _as_text(message: Message) -> str:
    """A message with its parts between tags, whatever its dialect."""
    parts = [] if message.thought is None else [f"<think> {message.thought} </think>"]
    for call in message.tool_calls:
        values = list(call.arguments.values())
        is_text = len(values) == 1 and isinstance(values[0], str)
        argument = str(values[0]) if is_text else json.dumps(call.arguments, ensure_ascii=False)
        parts.append(f"<{call.name}> {argument} </{call.name}>")
    if message.content and message.role == "assistant" and (parts or message.thought):
        parts.append(f"<answer> {message.content} </answer>")
    elif message.content:
        parts.append(message.content)
    return " ".join(parts)


def clipped(text: str, limit: int) -> str:
    """The first `limit` characters, and the number of those cut off."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]} [... {len(text) - limit} more characters]"


def _gold_answers(run: RunDirectory) -> Mapping[str, str]:
    questions = run.table("evaluate", "questions.parquet")
    if questions is None or not {"task_id", "gold"} <= set(questions.columns):
        return {}
    return {str(t): str(g) for t, g in zip(questions["task_id"], questions["gold"], strict=True)}


_QUESTIONS_EACH, _TEXTS_EACH, _DEMONSTRATIONS_EACH = 2, 2, 1
_TITLE_CHARACTERS = 140

_KINDS: dict[TextKind, str] = {
    "planning": "Plans: the first action, nothing executed (FAS)",
    "reasoning": "Reasoning over knowledge (FAS)",
    "decision": "Decisions among options, with their outcome (HAS)",
    "negative": "Calls that must not be made",
}
_ORIGINS = {"webshaper": "drawn", "expansion": "grown layer by layer"}
"""Task source -> words for it; other sources are a user's own and keep their name."""

ItemT = TypeVar("ItemT")


Sample = tuple[str, str, str]
"""Title of a row of the data, its messages, and what is known of it."""


def sample_tables(rows: TrainingRows | None) -> tuple[ReportTable, ...]:
    """Training questions by form, texts by kind, demonstrations; only kinds that have rows.

    Samples are evenly spaced over a kind's rows: equal data give equal samples.
    """
    if rows is None:
        return ()
    groups = (
        *_questions(rows.tasks.get("train", [])),
        *_texts(rows.texts),
        *_demonstrations(rows.demonstrations),
    )
    columns = ("title", "text", "what is known of it")
    return tuple(ReportTable(title, columns, tuple(shown), "texts") for title, shown in groups)


def spread(items: Sequence[ItemT], count: int) -> list[ItemT]:
    """At most `count` of the items, at even distances."""
    if len(items) <= count:
        return list(items)
    return [items[place * len(items) // count] for place in range(count)]


def _questions(tasks: Sequence[Task]) -> Iterable[tuple[str, list[Sample]]]:
    groups: dict[tuple[str, str, float], list[Task]] = defaultdict(list)
    for task in tasks:
        kind, steps = str(task.extra.get("kind", "")), task.metadata.difficulty or 0
        groups[task.metadata.source, kind, steps].append(task)
    for (source, kind, steps), found in sorted(groups.items()):
        origin = _ORIGINS.get(source, source)
        parts = [words(kind)] if kind else []
        parts += [f"{steps:g} step{'' if steps == 1 else 's'}"] if steps else []
        title = f"Questions, {origin}: {', '.join(parts)}" if parts else f"Questions, {origin}"
        yield f"{title} ({len(found):,})", list(map(_question, spread(found, _QUESTIONS_EACH)))


def _question(task: Task) -> Sample:
    facts = {
        "gold": "; ".join(task.verifier.gold),
        "query": str(task.extra.get("query", "")),
        "documents": ", ".join(_documents(task)),
        "task": task.task_id,
    }
    return _sample(task.prompt[-1].content, task.prompt, facts)


def _documents(task: Task) -> list[str]:
    found = task.extra.get("evidence")
    return [str(name) for name in found] if isinstance(found, list) else []


def _texts(texts: Sequence[AgentText]) -> Iterable[tuple[str, list[Sample]]]:
    groups: dict[TextKind, dict[str, list[AgentText]]] = defaultdict(lambda: defaultdict(list))
    for text in texts:
        groups[text.kind][text.style].append(text)
    for kind, title in _KINDS.items():
        styles = groups.get(kind, {})
        shown = [t for style in sorted(styles) for t in spread(styles[style], _TEXTS_EACH)]
        if shown:
            yield f"{title} ({sum(map(len, styles.values())):,})", list(map(_text, shown))


def _text(text: AgentText) -> Sample:
    facts = {
        "style": words(text.style),
        "task": text.task_id,
        "documents": ", ".join(text.sources),
        "text": text.text_id,
    }
    return _sample(text.prompt[-1].content, (*text.prompt, *text.pieces), facts)


def _demonstrations(trajectories: Sequence[Trajectory]) -> Iterable[tuple[str, list[Sample]]]:
    by_detour: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_detour[trajectory.detour].append(trajectory)
    shown = [
        trajectory
        for detour in sorted(by_detour)
        for trajectory in spread(by_detour[detour], _DEMONSTRATIONS_EACH)
    ]
    if shown:
        title = f"Trajectories of the teacher, one for each detour ({len(trajectories):,})"
        yield title, list(map(_demonstration, shown))


def _demonstration(trajectory: Trajectory) -> Sample:
    prompts = [message.content for message in trajectory.messages if message.role == "user"]
    facts = {
        "answer": trajectory.answer or "nothing",
        "finish": words(trajectory.finish_reason.value),
        "detour": words(trajectory.detour),
        "task": trajectory.task_id,
    }
    title = prompts[0] if prompts else trajectory.task_id
    return _sample(title, trajectory.messages, facts)


def _sample(title: str, messages: Iterable[Message], facts: Mapping[str, str]) -> Sample:
    written = (f"{one.role}: {clipped(_as_text(one), _MAX_CHARACTERS)}" for one in messages)
    known = (f"{name} {clipped(text, 600)}" for name, text in facts.items() if text)
    title = clipped(" ".join(title.split()), _TITLE_CHARACTERS)
    return title, "\n\n".join(written), "; ".join(known)
