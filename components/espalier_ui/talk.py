"""Talk to a checkpoint of a run: a process of its own plays, and the viewer shows what it did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from pydantic import Field

from espalier.chain import CHAIN
from espalier.records import NEWEST_CHECKPOINT, work_dir
from espalier.wire.requests import Refusal, RequestPart
from espalier_ui.one_attempt import episode
from espalier_ui.runs import Run
from espalier_ui.sources import is_within

_MOST_EXCHANGES = 50
_LONGEST_ANSWER = 64 << 20
_LEAVES_WITHIN_S = 5.0
_SAID_AT_THE_END = 5
"""Lines of a process that died which are shown."""
_FAILED = "the checkpoint's process has ended"


class QuestionAsked(RequestPart):
    """The body of a question: text of one's own, or a task of the run."""

    run: str = Field(max_length=200)
    checkpoint: str = Field(max_length=200)
    question: str | None = Field(None, min_length=1, max_length=20_000)
    task: str | None = Field(None, min_length=1, max_length=500)


class Checkpoint(NamedTuple):
    """A policy of a run that can be talked to."""

    name: str
    stage: str
    summary: str
    files: tuple[Path, ...]
    """Directory of the policy; for a stage that trains, that which it began with, and the file of
    its newest checkpoint."""


def checkpoints(run: Run) -> list[Checkpoint]:
    """Return the policies that are at hand in a run's folder, in the order of its stages."""

    def policy(artifact: str) -> Path:
        return run.path / artifact / "policy"

    found: list[Checkpoint] = []
    at_hand: set[str] = set()
    for stage in CHAIN:
        name, summary = stage.output, stage.output_summary
        begun = [policy(one) for one in stage.inputs if one in at_hand]
        newest = work_dir(run.path / name) / NEWEST_CHECKPOINT
        if (policy(name) / "config.json").is_file():
            at_hand.add(name)
            found.append(Checkpoint(name, stage.name, summary, (policy(name),)))
        if begun and newest.is_file():
            summary = f"the newest checkpoint of {stage.name}, which still trains or was ended"
            found.append(Checkpoint(f"{name}/latest", stage.name, summary, (begun[-1], newest)))
    return [one for one in found if all(is_within(run.path, file) for file in one.files)]


class Talks:
    """The conversation of a viewer: one checkpoint at a time, as each is a model in memory."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        """Begin without one.

        Args:
            command: the program that plays; None is `espalier_ui.talking`.
        """
        self._command = command or (sys.executable, "-m", "espalier_ui.talking")
        self._lock = threading.Lock()
        self._talk: _Talk | None = None

    def ask(self, run: Run, asked: QuestionAsked) -> dict[str, Any]:
        """Put a question, to a new process where another checkpoint was talked to.

        Raises:
            Refusal: the run has no such checkpoint, or it still answers.
        """
        if (asked.question is None) == (asked.task is None):
            raise Refusal(
                400, "question, task: give one of them", param="question", code="bad_parameter"
            )
        known = {one.name: one.files for one in checkpoints(run)}
        if asked.checkpoint not in known:
            raise Refusal(
                404,
                f"{asked.checkpoint[:100]}: no checkpoint in the folder of {run.id}; there are "
                f"{', '.join(known) or 'none'}",
                code="no_checkpoint",
            )
        with self._lock:
            talk = self._talk
            if talk is None or not talk.is_with(run.id, asked.checkpoint):
                if talk is not None:
                    talk.end()
                command = [*self._command, str(run.path), *map(str, known[asked.checkpoint])]
                self._talk = talk = _Talk(run.id, asked.checkpoint, command)
        given = {"question": asked.question, "task": asked.task}
        talk.ask({key: text for key, text in given.items() if text is not None})
        return talk.state()

    def state(self) -> dict[str, Any]:
        """Return the answer of `GET /api/chat`."""
        with self._lock:
            talk = self._talk
        if talk is None:
            nothing = {"run": None, "checkpoint": None, "problem": "", "step": None}
            return {**nothing, "state": "ended", "said": []}
        return talk.state()

    def end(self) -> None:
        """End the process, if there is one, and forget what was said."""
        with self._lock:
            talk, self._talk = self._talk, None
        if talk is not None:
            talk.end()


class _Talk:
    """One process, and what was asked of it."""

    def __init__(self, run: str, checkpoint: str, command: Sequence[str]) -> None:
        self._run, self._checkpoint = run, checkpoint
        self._lock = threading.Lock()
        self._state = "loading"
        self._problem = ""
        self._step: int | None = None
        self._said: deque[dict[str, Any]] = deque(maxlen=_MOST_EXCHANGES)
        self._last_lines: deque[str] = deque(maxlen=_SAID_AT_THE_END)
        hidden = ("ESPALIER_UI_TOKEN",)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={name: it for name, it in os.environ.items() if name not in hidden},
            start_new_session=True,
        )
        assert self._process.stdout is not None, "it is a pipe"
        assert self._process.stderr is not None, "it is a pipe"
        self._threads = [
            threading.Thread(target=work, args=(pipe,), name="talk", daemon=True)
            for work, pipe in (
                (self._read_answers, self._process.stdout),
                (self._read_lines, self._process.stderr),
            )
        ]
        for thread in self._threads:
            thread.start()

    def is_with(self, run: str, checkpoint: str) -> bool:
        """Whether it is alive and of this checkpoint."""
        return (self._run, self._checkpoint) == (run, checkpoint) and self._state != "ended"

    def ask(self, asked: Mapping[str, str]) -> None:
        """Pass a question on.

        Raises:
            Refusal: the one before is not answered yet.
        """
        with self._lock:
            if self._said and self._said[-1]["answer"] is None and self._state != "ended":
                raise Refusal(409, "the question before is not answered yet", code="busy")
            self._said.append({"question": None, "task": None, **asked, "answer": None})
            pipe = self._process.stdin
            assert pipe is not None, "it is a pipe"
            # a process that has just ended is told of by its answers' end
            with suppress(BrokenPipeError, ValueError):
                pipe.write(json.dumps(asked).encode() + b"\n")
                pipe.flush()

    def state(self) -> dict[str, Any]:
        """Return what was said, and whether an answer is being made."""
        with self._lock:
            waits = bool(self._said) and self._said[-1]["answer"] is None
            is_busy = self._state == "ready" and waits
            return {
                "run": self._run,
                "checkpoint": self._checkpoint,
                "state": "answering" if is_busy else self._state,
                "problem": self._problem,
                "step": self._step,
                "said": list(self._said),
            }

    def end(self) -> None:
        """End the process and all that it has started."""
        assert self._process.stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_LEAVES_WITHIN_S)
        except subprocess.TimeoutExpired:  # it plays, or loads
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for thread in self._threads:
            thread.join(_LEAVES_WITHIN_S)

    def _read_answers(self, pipe: IO[bytes]) -> None:
        while line := pipe.readline(_LONGEST_ANSWER):
            try:
                said = json.loads(line)
            except (ValueError, RecursionError):
                said = None
            if not isinstance(said, dict):
                said = {"error": "the answer cannot be read"}
            with self._lock:
                self._take(cast("dict[str, Any]", said))
        with self._lock:
            if self._state == "loading" and not self._problem:
                self._problem = "\n".join([_FAILED, *self._last_lines])
            self._state = "ended"
            if self._said and self._said[-1]["answer"] is None:
                self._said[-1]["answer"] = {"error": self._problem or _FAILED}

    def _take(self, said: Mapping[str, Any]) -> None:
        if "ready" in said:
            self._state, self._step = "ready", said.get("step")
        elif "failed" in said:
            self._problem = str(said["failed"])
        elif self._said:
            shown: dict[str, Any] = {"error": said.get("error")}
            if "episode" in said:
                shown |= episode(said["episode"])
                shown |= {"gold": said.get("gold"), "seconds": said.get("seconds")}
            self._said[-1]["answer"] = shown

    def _read_lines(self, pipe: IO[bytes]) -> None:
        while line := pipe.readline(1 << 16):
            self._last_lines.append(line.decode(errors="replace").strip()[:500])
