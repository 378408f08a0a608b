"""Trajectories prepared for reading: who wrote what, what trains, and what it earned."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from espalier.records import Message
from espalier.records.trajectory import Trajectory, read_trajectories
from espalier.reporting.formats import visible, words
from espalier.reporting.run_directory import RunDirectory

SHOWN = 20
_MAX_CHARACTERS = 6000
"""Of one message: an episode is a few hundred tokens, so that only a runaway is cut."""

_TAG = re.compile(r"(</?(?:think|search|information|answer)>)")
_SOURCES = (
    ("evaluate", "held-out questions, answered in evaluation"),
    ("train", "training questions, sampled in the last step"),
    ("validate", "teacher demonstrations that passed validation"),
    ("synthesize", "teacher demonstrations, not yet validated"),
)
_WRITER = {"assistant": "action", "tool": "observation", "user": "prompt", "system": "prompt"}


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a message: a tag itself, or text inside the tag that is named (or none)."""

    inside: str
    text: str
    is_tag: bool = False


@dataclass(frozen=True, slots=True)
class Passage:
    """One message, by who wrote it: `prompt`, `action` (the policy) or `observation`."""

    writer: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring tokens of one writer, for the strip that shows the mask."""

    writer: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Transcript:
    """One trajectory, ready to be shown."""

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
    strip: tuple[Run, ...]
    """Empty where the trajectory is text alone (a teacher's)."""
    mask_note: str


def newest_transcripts(run: RunDirectory) -> tuple[str, tuple[Transcript, ...]]:
    """Where the trajectories come from, and the first twenty of the latest stage that left some."""
    gold = _gold_answers(run)
    for stage, source in _SOURCES:
        artifact = run.artifacts.get(stage)
        path = artifact.file("trajectories.parquet") if artifact else None
        if path is None:
            continue
        trajectories = read_trajectories(path)[:SHOWN]
        if trajectories:
            return source, tuple(transcribe(t, gold.get(t.task_id, "")) for t in trajectories)
    return "", ()


def transcribe(trajectory: Trajectory, gold: str) -> Transcript:
    """Split a trajectory into passages by writer and spans by tag."""
    prompts = [m.content for m in trajectory.messages if m.role == "user"]
    question = visible(prompts[0]) if prompts else trajectory.task_id
    strip = mask_runs(trajectory)
    acted = sum(trajectory.action_mask)
    total = len(trajectory.token_ids)
    return Transcript(
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


def mask_runs(trajectory: Trajectory) -> tuple[Run, ...]:
    """Neighbouring tokens of one writer: prompt up to the first action, then action or observed."""
    mask = trajectory.action_mask
    first = mask.index(1) if 1 in mask else len(mask)
    writers = (
        "action" if acted else "prompt" if place < first else "observation"
        for place, acted in enumerate(mask)
    )
    return tuple(Run(writer, len(list(tokens))) for writer, tokens in groupby(writers))


def passage_of(message: Message) -> Passage:
    """A message by who wrote it, every character of it visible."""
    text = visible(clipped(_as_text(message), _MAX_CHARACTERS))
    spans: list[Span] = []
    inside = ""
    for piece in _TAG.split(text):
        is_tag = _TAG.fullmatch(piece) is not None
        name = piece.strip("</>") if is_tag else inside
        if is_tag:
            inside = "" if piece.startswith("</") else name
        if piece:
            spans.append(Span(name, piece, is_tag))
    return Passage(_WRITER[message.role], tuple(spans))


def _as_text(message: Message) -> str:
    """A message with its parts between tags, whatever dialect it was written in."""
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
    """The first `limit` characters, and how many more there were."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]} [... {len(text) - limit} more characters]"


def _gold_answers(run: RunDirectory) -> Mapping[str, str]:
    questions = run.table("evaluate", "questions.parquet")
    if questions is None or not {"task_id", "gold"} <= set(questions.columns):
        return {}
    return {str(t): str(g) for t, g in zip(questions["task_id"], questions["gold"], strict=True)}
