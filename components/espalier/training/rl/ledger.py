"""The prompt ledger: the outcome of every draw, saved in the checkpoint.

A draw is a task that is taken for sampling. Draws are numbered from 0 over the whole run.

    drawn -> closed -> trained    its group is sampled; a step has learned from it
    drawn -> closed -> dropped    its group is sampled; a reason says why no step learns from it
    drawn -> dropped              it was dropped before its group was sampled

A draw that is neither trained nor dropped is open. A checkpoint is written between two steps. It
holds the number of the next draw, the open draws with their tasks, counts of the settled draws and
the newest of them. A resumed run samples the open draws again and then draws the next number, so
each number is trained or dropped exactly once in the weights that are kept: the work of a killed
run after its last checkpoint is in neither weights nor ledger.

When sampling and learning alternate, nothing is open between two steps, and a resumed run repeats
the same draws, as the step seeds them. With sampling ahead of the learner, the draws also depend on
the groups in flight; there a journal beside the checkpoint keeps the draws made since, and a
resumed run takes the same tasks under the same numbers.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from espalier.records import whole_file

KEPT_ROWS = 4096
"""Number of settled draws whose rows are kept, the newest; older ones are only in the counts and
the digest. About 300 kB in a checkpoint, however long the run is."""
JOURNAL = ".draws.jsonl"
"""A hidden file: the copy of a checkpoint in S3 holds only files that are replaced as a whole."""


class Outcome(enum.StrEnum):
    """The outcome of a draw."""

    TRAINED = "trained"
    """A step has learned from its group."""
    SCREENED = "screened"
    """The screening sampled only right or only wrong attempts, so the rest was not sampled."""
    NOT_NEEDED = "not_needed"
    """It passed the screening after the step had enough groups."""
    FILTERED = "filtered"
    """A filter of the algorithm left its group out."""
    NO_MATERIAL = "no_material"
    """The algorithm learns from successes or pairs, and its group had none."""
    LOST = "lost"
    """All its episodes were lost to infrastructure, or so many that nothing was left to compare."""
    TASK_GONE = "task_gone"
    """Self-play proposed its task after the checkpoint from which a killed run was resumed."""
    RUN_ENDED = "run_ended"
    """The run took its last step before this draw was needed."""


class OpenDraw(NamedTuple):
    """A draw that is neither trained nor dropped."""

    number: int
    task_id: str
    step: int
    """The step that drew it, counted from 1 as in the history."""


class SettledDraw(NamedTuple):
    """A draw that a step has learned from, or that was dropped."""

    number: int
    task_id: str
    step: int
    """The step that settled it, counted from 1."""
    outcome: Outcome


class DrawJournal:
    """The draws since the newest checkpoint, one per line, written before they are sampled.

    Lines reach the operating system at once, which keeps them if this process is killed. If the
    machine fails, the last lines may be missing or unreadable: then other tasks are drawn under
    their numbers.
    """

    def __init__(self, path: Path, identity: str) -> None:
        """Set the file.

        Args:
            path: path of the file, which need not exist.
            identity: identity of the run; lines of other runs are not read.
        """
        self._path = path
        self._identity = identity

    def read(self, first: int) -> list[OpenDraw]:
        """Return the draws from `first` on, up to a line that is damaged, cut off or missing."""
        if not self._path.is_file():
            return []
        head, *lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
        if head != self._identity:
            return []
        # the rest after the last line break is empty, or an incomplete line
        draws: list[OpenDraw] = []
        for line in lines[:-1]:
            draw, expected = _draw_of(line), first + len(draws)
            if draw is None or draw.number > expected:
                break
            if draw.number == expected:  # earlier draws are in the checkpoint
                draws.append(draw)
        return draws

    def begin(self, draws: Sequence[OpenDraw] = ()) -> None:
        """Delete what was written, and keep only `draws`."""
        with whole_file(self._path) as draft:
            draft.write_text(f"{self._identity}\n{_lines(draws)}", encoding="utf-8")

    def append(self, draws: Sequence[OpenDraw]) -> None:
        """Add draws, in one write."""
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(_lines(draws))


class PromptLedger:
    """Counts draws, and records the outcome of each; each is settled once."""

    def __init__(self) -> None:
        self.journal: DrawJournal | None = None
        """Journal of the draws since the checkpoint; sampling ahead needs one."""
        self.step = 0
        """The step in which draws are made and settled, counted from 1; the loop sets it."""
        self._next = 0
        self._open: dict[int, OpenDraw] = {}
        self._closed: set[int] = set()
        self._counts: Counter[str] = Counter()
        self._newest: deque[SettledDraw] = deque(maxlen=KEPT_ROWS)
        self._digest = ""

    @property
    def num_draws(self) -> int:
        """Number of draws so far, which is the number of the next one."""
        return self._next

    @property
    def open_draws(self) -> list[OpenDraw]:
        """Return the draws that are neither trained nor dropped, in the order of their numbers."""
        return [self._open[number] for number in sorted(self._open)]

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of settled draws by outcome."""
        return dict(self._counts)

    def draw(self, task_ids: Sequence[str]) -> list[int]:
        """Record that these tasks are taken for sampling; return the numbers of their draws."""
        made = [OpenDraw(self._next + n, task, self.step) for n, task in enumerate(task_ids)]
        if self.journal is not None and made:
            self.journal.append(made)
        self._open.update((draw.number, draw) for draw in made)
        self._next += len(made)
        return [draw.number for draw in made]

    def close(self, number: int) -> None:
        """Record that the group of a draw is sampled."""
        assert number in self._open, f"draw {number} is closed after it was settled"
        self._closed.add(number)

    def settle(self, numbers: Iterable[int], outcome: Outcome) -> None:
        """Record the outcome of open draws."""
        for number in numbers:
            draw = self._open.pop(number, None)
            assert draw is not None, f"draw {number} is settled twice, now as {outcome}"
            self._closed.discard(number)
            settled = SettledDraw(number, draw.task_id, self.step, outcome)
            self._counts[outcome] += 1
            self._newest.append(settled)
            # a chain: equal digests mean equal rows since the first, also those no longer kept
            row = f"{self._digest}\n{json.dumps(settled)}"
            self._digest = hashlib.sha256(row.encode()).hexdigest()

    def end(self) -> None:
        """Drop the open draws: the run has taken its last step."""
        self.settle(sorted(self._open), Outcome.RUN_ENDED)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as plain data for `restore`."""
        assert self._next == len(self._open) + self._counts.total(), "every draw is counted once"
        return {
            "next": self._next,
            "open": [[*draw, draw.number in self._closed] for draw in self.open_draws],
            "counts": {str(outcome): count for outcome, count in self._counts.items()},
            "newest": [[*row[:3], str(row.outcome)] for row in self._newest],
            "digest": self._digest,
        }

    def saved(self) -> None:
        """Record that the checkpoint with `state` is written: the journal begins again."""
        if self.journal is not None:
            self.journal.begin()

    def restore(self, state: dict[str, Any] | None, *, step: int) -> None:
        """Continue from a checkpoint, and from the draws that were made after it.

        Args:
            state: what `state` returned; None where there is no checkpoint.
            step: steps done.
        """
        state = state or {"next": 0, "open": [], "counts": {}, "newest": [], "digest": ""}
        self.step = step
        self._next = state["next"]
        # also what was closed is sampled again: trajectories that wait are not in a checkpoint
        self._open = {row[0]: OpenDraw(*row[:3]) for row in state["open"]}
        self._closed.clear()
        self._counts = Counter(state["counts"])
        rows = (
            SettledDraw(number, task_id, settled_in, Outcome(outcome))
            for number, task_id, settled_in, outcome in state["newest"]
        )
        self._newest = deque(rows, maxlen=KEPT_ROWS)
        self._digest = state["digest"]
        if self.journal is not None:
            made = self.journal.read(self._next)
            self.journal.begin(made)
            self._open.update((draw.number, draw) for draw in made)
            self._next += len(made)

    def write(self, path: Path) -> None:
        """Write JSON lines: a summary, then the open draws and the newest settled ones."""
        summary = {
            "draws": self._next,
            "open": len(self._open),
            **{str(outcome): self._counts[outcome] for outcome in Outcome},
            "digest": self._digest,
        }
        rows = [
            *(
                {**draw._asdict(), "outcome": "closed" if draw.number in self._closed else "drawn"}
                for draw in self.open_draws
            ),
            *(row._asdict() for row in self._newest),
        ]
        with whole_file(path) as draft:
            draft.write_text("".join(f"{json.dumps(row)}\n" for row in (summary, *rows)))


def _lines(draws: Sequence[OpenDraw]) -> str:
    return "".join(f"{json.dumps(draw)}\n" for draw in draws)


def _draw_of(line: str) -> OpenDraw | None:
    """Return the draw in a line of the journal; None if the line is damaged."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    match found:
        case [int(number), str(task_id), int(step)]:
            return OpenDraw(number, task_id, step)
    return None
