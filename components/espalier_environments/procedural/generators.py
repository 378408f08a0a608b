"""Client of the process that generates and scores, which is `worker`."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from espalier.environments.contract import EnvironmentLostError
from espalier.records import DataError, EspalierError
from espalier.sandbox.call_time import call_waits
from espalier_environments.procedural import worker

Knobs = Mapping[str, object]

_START_WITHIN_S = 300.0
"""Importing reasoning-gym takes three to six seconds on an idle machine."""
_MAX_REPLY_BYTES = 256 * 2**20
_SLACK_S = 30.0
"""Added to the time after which the process ends a request itself."""


class Item(NamedTuple):
    """A question of a generator."""

    question: str
    gold: str
    """A right answer; empty if upstream reveals none."""


class Verdict(NamedTuple):
    """The score of an answer."""

    score: float
    """Score by the generator's own scorer, 0-1."""
    right: bool
    """Whether the answer is fully right."""


_WRONG = Verdict(0.0, right=False)


class GeneratorsError(EspalierError):
    """The generating process cannot be used at all."""


class Generators:
    """The generating process: one request at a time, restarted when it is lost.

    Args:
        python: interpreter with reasoning-gym.
    """

    def __init__(self, python: Path) -> None:
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)

    @property
    def process_id(self) -> int | None:
        """Id of the process; None if it is not running."""
        return self._process and self._process.pid

    def names(self) -> dict[str, int]:
        """Return each generator with the number of levels of upstream's curriculum; 0 for none."""
        return self._asked({"generators": True}, worker.MAKE_CPU_S)["generators"]

    def levels(self, name: str, count: int) -> list[dict[str, object]]:
        """Return the parameters of the first `count` levels of upstream's curriculum.

        Raises:
            DataError: upstream has no curriculum for this generator.
        """
        return self._asked({"levels": [name, count]}, worker.MAKE_CPU_S)["levels"]

    def items(self, name: str, knobs: Knobs, places: range) -> list[Item]:
        """Return the items of a generator at consecutive places, the same on every machine.

        Raises:
            DataError: the generator does not exist, or refuses the parameters.
        """
        request = {"items": [name, knobs, places.start, len(places)]}
        reply = self._asked(request, worker.MAKE_CPU_S)
        if "killed" in reply:
            raise DataError(
                f"{name} makes no {len(places)} items within {worker.MAKE_CPU_S:g} s of processor "
                f"time and {worker.MEMORY_BYTES >> 30} GiB; give it smaller knobs than {knobs}"
            )
        return [Item(question, gold) for question, gold in reply["items"]]

    def score(self, name: str, knobs: Knobs, place: int, question: str, answer: str) -> Verdict:
        """Return the score of an answer to the item at `place`.

        An answer whose scoring exceeds the limits of time or memory is wrong.

        Raises:
            DataError: this version of reasoning-gym has another question at that place.
            EnvironmentLostError: the process was ended for an outside cause.
        """
        if len(answer) > worker.MAX_ANSWER_CHARACTERS:
            return _WRONG
        request = {"score": [name, knobs, place, question, answer]}
        reply = self._asked(request, worker.MAKE_CPU_S + worker.SCORE_CPU_S)
        if "killed" not in reply:
            return Verdict(reply["score"], right=reply["right"])
        if reply["killed"] in _FROM_OUTSIDE:
            raise EnvironmentLostError(
                f"the scorer of {name} was ended by {signal.Signals(reply['killed']).name}"
            )
        return _WRONG

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _asked(self, request: Mapping[str, object], cpu_s: float) -> dict[str, Any]:
        line = json.dumps(request).encode() + b"\n"
        # what waits for other answers, or the process that has limits of its own, is not late
        with call_waits(), self._turn:
            process = self._process or self._started()
            reply = exchange(process, line, cpu_s * worker.WALL_FACTOR + _SLACK_S)
            if reply is None:
                self.close()
                raise EnvironmentLostError(
                    f"the process of reasoning-gym ended, or did not answer: {self._last_words()}"
                )
        if "refused" in reply:
            raise DataError(str(reply["refused"]))
        return reply

    def _started(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [str(self._python), "-s", "-P", worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            # a fixed hash seed gives sets one order everywhere; nothing else is inherited
            env={
                "PYTHONHASHSEED": "0",
                "OPENBLAS_NUM_THREADS": "1",
                "MPLCONFIGDIR": tempfile.gettempdir(),
            },
        )
        if exchange(self._process, b"", _START_WITHIN_S) is None:
            self.close()
            raise GeneratorsError(
                f"{self._python}: reasoning-gym does not start there ({self._last_words()}). "
                "Make its virtual environment again with `espalier environments add procedural`"
            )
        return self._process

    def _last_words(self) -> str:
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - 2000))
        lines = self._said.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")[-400:]


_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGALRM}
"""Signals that no answer can cause. SIGALRM ends a request that waited too long on a busy
machine."""


def exchange(
    process: subprocess.Popen[bytes], request: bytes, within_s: float
) -> dict[str, Any] | None:
    """Send a request and return the reply; None on timeout, a dead process, or an invalid reply."""
    assert process.stdin is not None, "the process is started with pipes"
    assert process.stdout is not None, "the process is started with pipes"
    deadline = time.monotonic() + within_s
    received = bytearray()
    try:
        process.stdin.write(request)
    except BrokenPipeError:
        return None
    while not received.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
            return None
        data = os.read(process.stdout.fileno(), 1 << 16)
        if not data:
            return None
        received += data
        if len(received) > _MAX_REPLY_BYTES:
            return None
    try:
        reply: object = json.loads(received)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", reply) if isinstance(reply, dict) else None


@lru_cache(maxsize=4)
def generators_of(python: Path) -> Generators:
    """Return the generating process of an interpreter, shared within this process."""
    made = Generators(python)
    atexit.register(made.close)
    return made
