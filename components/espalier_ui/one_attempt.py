"""One attempt: messages, results, tokens, evidence; and where the attempts of a group part."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from espalier.records.episodes import mask_of, unpacked
from espalier.records.spans import Span
from espalier.wire.requests import Refusal
from espalier_ui.attempts import shown
from espalier_ui.lineage import Tasks
from espalier_ui.parameters import AttemptPlace, Page
from espalier_ui.run_index import RunIndex, message_text
from espalier_ui.sources import SOURCES
from espalier_ui.token_text import TokenTexts

LONGEST = 20_000
"""Characters of a text in an answer, unless it is asked for alone."""
_MOST_SIBLINGS = 200
_MOST_PARTED = 32


def record_of(index: RunIndex, place: AttemptPlace) -> dict[str, Any]:
    """Return an attempt's record.

    Raises:
        Refusal: there is none (any more).
    """
    found = index.record(*place)
    if found is None or not isinstance(found.get("messages"), list):
        raise Refusal(
            404,
            f"{place}: no such attempt; a run that was resumed writes its last steps again",
            code="no_attempt",
        )
    return found


def attempt(
    index: RunIndex, place: AttemptPlace, tasks: Tasks, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return the answer of `GET .../attempts/ATTEMPT`."""
    record = record_of(index, place)
    where = (SOURCES.index(place.source), place.number, place.offset)
    with index.reading() as connection:
        row = connection.execute(
            "SELECT * FROM attempts WHERE source = ? AND number = ? AND offset = ?", where
        ).fetchone()
        if row is None:
            raise Refusal(404, f"{place}: not indexed yet; ask again", code="no_attempt")
        siblings = connection.execute(
            "SELECT source, number, offset, is_right, reward FROM attempts "
            "WHERE source = ? AND step = ? AND task = ? ORDER BY number, offset LIMIT ?",
            (row["source"], row["step"], row["task"], _MOST_SIBLINGS),
        ).fetchall()
        neighbours = [
            connection.execute(
                "SELECT source, number, offset FROM attempts WHERE source = ? AND "
                f"(number, offset) {sign} (?, ?) ORDER BY number {order}, offset {order} LIMIT 1",
                where,
            ).fetchone()
            for sign, order in (("<", "DESC"), (">", "ASC"))
        ]
    known = tasks.get(str(record.get("task_id")))
    gold = known["gold"] if known else None
    listed = shown(row, labels)
    previous, following = (None if one is None else _id(one) for one in neighbours)
    return listed | {
        "answer": _cut_text(record.get("answer")),
        "messages": _messages(record),
        "results": _results(record),
        "gold": gold,
        "evidence": _evidence(record, known),
        "spans": [one._asdict() for one in _spans(record)],
        "turns": [
            {"action": turn[:2], "observation": turn[1:3], "reward": turn[3]}
            for turn in _turns(record)
        ],
        "windows": record.get("window_starts"),
        "has_tokens": listed["tokens"] > 0,
        "has_trainer": "trainer_logprobs" in record,
        "has_entropy": "entropies" in record,
        "siblings": [
            {"id": _id(one), "right": bool(one["is_right"]), "reward": one["reward"]}
            for one in siblings
        ],
        "previous": previous,
        "next": following,
        "lineage": {
            "task": record.get("task_id"),
            "step": record["step"] or None,
            "trained_in": None
            if listed["trained"] is None
            else [record["step"]]
            if listed["trained"]
            else [],
            "policy_version": record.get("policy_version"),
        },
    }


def episode(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of an attempt that no stream holds, uncut."""
    whole, reward = 1 << 62, record.get("reward")
    return {
        "messages": _messages(record, whole),
        "results": _results(record, whole),
        "spans": [one._asdict() for one in _spans(record)],
        "answer": record.get("answer"),
        "finish": record.get("finish_reason"),
        "terms": reward if isinstance(reward, dict) else {},
    }


def message(index: RunIndex, place: AttemptPlace, kind: str, number: int) -> dict[str, Any]:
    """Return one message or result, uncut.

    Args:
        index: the run's index.
        place: the attempt.
        kind: "messages" or "results".
        number: its number, from 0.

    Raises:
        Refusal: there is none.
    """
    record = record_of(index, place)
    whole = 1 << 62
    found = _messages(record, whole) if kind == "messages" else _results(record, whole)
    if number >= len(found):
        raise Refusal(404, f"{place} has {len(found)} {kind}", code="no_attempt")
    return found[number]


def tokens(
    index: RunIndex, place: AttemptPlace, page: Page, texts: TokenTexts | None
) -> dict[str, Any]:
    """Return the columns of `GET .../tokens`.

    Raises:
        Refusal: the tokens of the record are damaged.
    """
    record = record_of(index, place)
    try:
        ids = unpacked(record["token_ids"], "<i4")
        mask = mask_of(record["mask_runs"])
        if len(mask) != len(ids):
            raise ValueError("mask and tokens differ in length")
        sampled = {
            name: _spread(record.get(field), mask)
            for name, field in (
                ("logprob", "behavior_logprobs"),
                ("trainer_logprob", "trainer_logprobs"),
                ("entropy", "entropies"),
                ("advantage", "advantages"),
            )
        }
        loss = mask_of(record["loss_runs"]) if "loss_runs" in record else None
    except (ValueError, TypeError, KeyError) as error:
        raise Refusal(
            500, f"{place}: its tokens cannot be read ({error})", code="unreadable"
        ) from error
    turn_of: list[int | None] = [None] * len(ids)
    for number, turn in enumerate(_turns(record)):
        for token in range(max(0, turn[0]), min(turn[2], len(ids))):
            turn_of[token] = number
    part = slice(page.offset, page.offset + page.limit)
    shown_ids = ids[part].tolist()
    return {
        "total": len(ids),
        "offset": page.offset,
        "ids": shown_ids,
        "text": texts.of(shown_ids) if texts else None,
        "sampled": mask[part].tolist(),
        **{name: None if found is None else found[part] for name, found in sampled.items()},
        "loss": None if loss is None or len(loss) != len(ids) else loss[part].tolist(),
        "turn": turn_of[part],
        "policy_version": record.get("policy_version"),
    }


def parting(index: RunIndex, source: str, step: int, task: str) -> dict[str, Any]:
    """Return where the attempts of a group part."""
    with index.reading() as connection:
        rows = connection.execute(
            "SELECT source, number, offset FROM attempts "
            "WHERE source = ? AND step = ? AND task = ? ORDER BY number, offset LIMIT ?",
            (SOURCES.index(source), step, task, _MOST_SIBLINGS),
        ).fetchall()
    records = [index.record(source, row["number"], row["offset"]) or {} for row in rows]
    by_token = [_token_list(record) for record in records]
    by_text = [
        [message_text(one) for one in _list(record, "messages") if isinstance(one, Mapping)]
        for record in records
    ]
    has_tokens = all(map(len, by_token)) and len(records) > 1
    common = min((_common(by_token[0], other) for other in by_token[1:]), default=0)
    compared = by_token[:_MOST_PARTED] if has_tokens else []  # each with each
    first = [_longest(place, compared) for place in range(len(compared))]
    first += [None] * (len(records) - len(compared))
    same = _same_messages(by_text)
    mask = _mask(records[0]) if records else []
    return {
        "attempts": [_id(row) for row in rows],
        "common": int(sum(mask[:common])) if has_tokens else 0,
        "parts": common if has_tokens else None,
        "first": first,
        "message": same[0],
        "character": same[1],
        "same_as": [_first_alike(place, by_text, records) for place in range(len(records))],
    }


def _longest(place: int, sequences: Sequence[Sequence[Any]]) -> int:
    """Return up to where another sequence goes along with the one at `place`."""
    own = sequences[place]
    others = (one for number, one in enumerate(sequences) if number != place)
    return max((_common(own, other) for other in others), default=0)


def _same_messages(texts: Sequence[Sequence[str]]) -> tuple[int | None, int | None]:
    """Return where attempts stop being the same: the message, and the character in it, from 0.

    Both are None where all messages are the same, and where there is only one attempt.
    """
    if all(other == texts[0] for other in texts[1:]):
        return None, None
    same = min(_common(texts[0], other) for other in texts[1:])
    following = [one[same] if same < len(one) else "" for one in texts]
    character = min(_common(following[0], other) for other in following[1:])
    # the page counts UTF-16 code units
    return same, len(following[0][:character].encode("utf-16-le", "surrogatepass")) // 2


def _first_alike(
    place: int, texts: Sequence[Sequence[str]], records: Sequence[Mapping[str, Any]]
) -> str | None:
    """Return the sample number of an earlier attempt with the same messages, if there is one."""
    first = texts.index(texts[place])
    return None if first == place or not texts[place] else str(records[first].get("sample", first))


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common beginning."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def _token_list(record: Mapping[str, Any]) -> list[int]:
    try:
        return unpacked(record["token_ids"], "<i4").tolist()
    except (ValueError, KeyError):
        return []


def _mask(record: Mapping[str, Any]) -> list[int]:
    try:
        return mask_of(record["mask_runs"]).tolist()
    except (ValueError, TypeError, KeyError):
        return []


def _spread(text: object, mask: np.ndarray) -> list[float | None] | None:
    """Return a value per token, None where nothing was sampled or known."""
    if text is None:
        return None
    values = unpacked(text, "<f4").tolist()
    places = np.flatnonzero(mask)
    if len(values) != len(places):
        raise ValueError("it has another number of values than of sampled tokens")
    found: list[float | None] = [None] * len(mask)
    for place, value in zip(places.tolist(), values, strict=True):
        found[place] = round(value, 6) if math.isfinite(value) else None
    return found


def _turns(record: Mapping[str, Any]) -> Iterable[list[Any]]:
    for turn in _list(record, "turns"):
        if isinstance(turn, list) and len(turn) == 4 and all(isinstance(n, int) for n in turn[:3]):
            yield turn


_MOST_SPANS = 5000


def _spans(record: Mapping[str, Any]) -> list[Span]:
    """Return what was measured, as far as it can be read."""
    found: list[Span] = []
    for one in _list(record, "spans")[:_MOST_SPANS]:
        if not isinstance(one, list) or len(one) != 4:
            continue
        kind, start, end, turn = one
        are_times = all(type(it) in (int, float) and abs(it) < _LONGEST_S for it in (start, end))
        if isinstance(kind, str) and are_times and (turn is None or type(turn) is int):
            found.append(Span(kind, start, end, turn))  # pyright: ignore[reportArgumentType]
    return found


_LONGEST_S = 1e9


def _message_times(
    spans: Iterable[Span], places: Sequence[tuple[object, int | None]]
) -> list[Span | None]:
    """Return when each message was written or read; None where it was not measured.

    Args:
        spans: of the attempt.
        places: role and turn of each message.
    """
    by_turn: dict[tuple[str, int | None], list[Span]] = {}
    for span in spans:
        by_turn.setdefault((span.kind, span.turn), []).append(span)
    results = Counter(turn for role, turn in places if role == "tool")
    found: list[Span | None] = []
    for role, turn in places:
        kind = {"assistant": "sampling", "tool": "tools"}.get(str(role), "")
        known = by_turn.get((kind, turn), []) if turn is not None else []
        if not known:
            found.append(None)
        elif kind == "tools" and len(known) == results[turn] > 1:
            found.append(known[sum(r == "tool" and t == turn for r, t in places[: len(found)])])
        else:  # a call that waited for a sandbox has several spans
            found.append(known[0]._replace(end=known[-1].end))
    return found


def _list(record: Mapping[str, Any], name: str) -> list[Any]:
    found = record.get(name)
    return found if isinstance(found, list) else []


def _messages(record: Mapping[str, Any], longest: int = LONGEST) -> list[dict[str, Any]]:
    found = [one for one in _list(record, "messages") if isinstance(one, dict)]
    turns, said = list(_turns(record)), sum(one.get("role") == "assistant" for one in found)
    # attempts with reflections in between have more turns than messages
    has_turns = len(turns) in (0, said)
    numbers = accumulate(one.get("role") == "assistant" for one in found)
    places = [
        (one.get("role"), number - 1 if number and has_turns else None)
        for one, number in zip(found, numbers, strict=True)
    ]
    times = _message_times(_spans(record), places)
    shown_messages: list[dict[str, Any]] = []
    for one, (_, turn), time in zip(found, places, times, strict=True):
        whole = {
            "role": one.get("role"),
            "content": one.get("content") or "",
            "thought": one.get("thought"),
            "tool_calls": _list(one, "tool_calls"),
            "call_id": one.get("call_id") or "",
            "turn": turn,
            "start": time and time.start,
            "seconds": time and round(time.end - time.start, 5),
        }
        shown_messages.append(_cut(whole, longest))
    return shown_messages


def _results(record: Mapping[str, Any], longest: int = LONGEST) -> list[dict[str, Any]]:
    calls = [one for one in _list(record, "tool_calls") if isinstance(one, dict)]
    messages = _list(record, "messages")
    places = [
        n for n, one in enumerate(messages) if isinstance(one, dict) and one.get("role") == "tool"
    ]
    return [
        _cut(
            {
                "call": number,
                "name": call.get("name"),
                "arguments": call.get("arguments"),
                "content": call.get("result") or "",
                "succeeded": bool(call.get("succeeded")),
                "exists": call.get("exists", True) is not False,
                "message": places[number] if len(places) == len(calls) else None,
            },
            longest,
        )
        for number, call in enumerate(calls)
    ]


def _cut(whole: dict[str, Any], longest: int) -> dict[str, Any]:
    """Return an object whose texts have at most `longest` characters, with `cut`."""
    left_out = 0

    def shortened(value: Any) -> Any:  # noqa: ANN401 (whatever JSON holds)
        nonlocal left_out
        match value:
            case str() if len(value) > longest:
                left_out += len(value) - longest
                return value[:longest]
            case dict():
                return {key: shortened(it) for key, it in value.items()}
            case list():
                return [shortened(it) for it in value]
            case _:
                return value

    return shortened(whole) | {"cut": left_out}


def _cut_text(value: object) -> str | None:
    return value[:LONGEST] if isinstance(value, str) else None


def _evidence(record: Mapping[str, Any], task: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    reward = record.get("reward")
    found: list[dict[str, Any]] = []
    for term, value in reward.items() if isinstance(reward, dict) else ():
        is_outcome = term == "outcome" and task is not None
        found.append(
            {
                "term": term,
                "value": value,
                "verifier": task["verifier"] if is_outcome and task else None,
                "gold": task["gold"] if is_outcome and task else None,
                "answer": _cut_text(record.get("answer")) if term == "outcome" else None,
                "judges": None,
                "text": "",
            }
        )
    return found


def _id(row: Any) -> str:  # noqa: ANN401 (a row of SQLite)
    return str(AttemptPlace(SOURCES[row["source"]], row["number"], row["offset"]))
