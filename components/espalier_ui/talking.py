"""The process that plays for the viewer: `python -m espalier_ui.talking RUN POLICY [FILE]`.

With FILE, the checkpoint of a training that began with POLICY, it plays the policy of that. It
reads a line of JSON for each question, `{"question": TEXT}` or `{"task": ID}`, and answers with
`{"episode": RECORD, "gold": [...] | null, "seconds": S}` or `{"error": TEXT}`. The first line
is `{"ready": true, "step": N | null}`, or `{"failed": TEXT}` where the checkpoint cannot be loaded.
It ends with its input, and when nothing was asked for a while.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from espalier.orchestration.finished_run import Conversation, open_finished_run
from espalier.records import EspalierError
from espalier.records.episodes import EpisodePlace, episode_record

_IDLE_S = 900.0
"""Seconds without a question after which the process gives its memory back."""
_LOWER_PRIORITY = 10
"""A run that trains on this machine goes first."""


def main(run_dir: Path, policy_dir: Path, checkpoint: Path | None = None) -> None:
    """Answer until the input ends."""
    os.nice(_LOWER_PRIORITY)
    # what a library prints must not stand between the answers
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    try:
        with (
            _policy_of(run_dir, policy_dir, checkpoint) as (directory, step),
            Conversation.opened(run_dir, directory) as conversation,
        ):
            _say(answers, {"ready": True, "step": step})
            for asked in _asked(sys.stdin.buffer):
                _say(answers, _answer(conversation, asked))
    except EspalierError as error:
        _say(answers, {"failed": str(error)})


@contextmanager
def _policy_of(
    run_dir: Path, policy_dir: Path, checkpoint: Path | None
) -> Generator[tuple[Path, int | None]]:
    """Directory of the policy to play, and its step if it is of a checkpoint."""
    if checkpoint is None:
        yield policy_dir, None
        return
    from espalier.policy.loading import save_policy
    from espalier.training.checkpoint import checkpointed_policy

    profile = open_finished_run(run_dir).profile
    policy, step = checkpointed_policy(checkpoint, policy_dir, profile)
    with TemporaryDirectory(prefix="espalier-talk-") as folder:
        save_policy(policy, Path(folder) / "policy")
        yield Path(folder) / "policy", step


def _asked(lines: BinaryIO) -> Iterator[dict[str, Any]]:
    # one line is there at a time: the viewer waits for an answer before it asks again
    while select.select([lines], [], [], _IDLE_S)[0] and (line := lines.readline()):
        yield json.loads(line)


def _answer(conversation: Conversation, asked: Mapping[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        task = conversation.task(asked["task"]) if "task" in asked else None
        played = conversation.ask(asked["question"]) if task is None else conversation.play(task)
    except EspalierError as error:
        return {"error": str(error)}
    return {
        "episode": episode_record(played, EpisodePlace(0, 0, time.time())).content,
        "gold": None if task is None else list(task.verifier.gold),
        "seconds": round(time.perf_counter() - started, 3),
    }


def _say(answers: BinaryIO, said: object) -> None:
    # a lone surrogate of a model's text has no UTF-8 encoding
    answers.write(json.dumps(said, ensure_ascii=False).encode(errors="replace") + b"\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
