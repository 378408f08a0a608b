"""Attempts that clients begin and end over HTTP, without a stage of a run that plays them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated

from pydantic import Field

from espalier.records.trajectory import Trajectory
from espalier.wire.requests import Refusal, RequestPart
from espalier_interop.recording.attempt import Attempt
from espalier_interop.recording.call_request import Json
from espalier_interop.recording.recorder import Recorder

_Name = Annotated[str, Field(min_length=1, max_length=256)]


class BeginRequest(RequestPart):
    """Body of `POST /attempts`."""

    task_id: _Name
    group_id: _Name | None = None
    """Shared by attempts that are compared with each other; by default the attempts at one task."""


class AttemptManager:
    """Begins attempts, ends them on request or at their deadline, hands on trajectories."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        deadline_s: float,
        max_open: int,
        hand_on: Callable[[Trajectory], None],
    ) -> None:
        """Take attempts for `recorder`.

        Args:
            recorder: opens and closes the attempts.
            deadline_s: time limit of an attempt, after which it is lost.
            max_open: most attempts open at one time; a further one is refused.
            hand_on: called with the trajectory of each recorded attempt.
        """
        self._recorder = recorder
        self._deadline_s = deadline_s
        self._max_open = max_open
        self._hand_on = hand_on
        self._open: dict[str, tuple[BeginRequest, ExitStack]] = {}
        self.over = asyncio.Event()
        """Set once no further attempt is to follow (`end_after`)."""
        self._left: int | None = None

    def end_after(self, attempts: int) -> None:
        """Set `over` once `attempts` attempts have ended."""
        self._left = attempts

    def begin(self, asked: BeginRequest, base: str) -> Json:
        """Open an attempt; return what an agent needs to use it.

        Args:
            asked: the task and group of the attempt.
            base: address of the endpoint, as the client reached it.

        Raises:
            Refusal: too many are open.
        """
        if len(self._open) >= self._max_open:
            raise Refusal(429, f"{self._max_open} attempts are open, which is the most")
        attempt = self._recorder.begin()
        stack = ExitStack()
        attempt_id = attempt.attempt_id
        expire = self._recorder.deadline(
            attempt, self._deadline_s, on_expiry=lambda: self._end(attempt)
        )
        stack.enter_context(expire)
        self._open[attempt_id] = (asked, stack)
        url = f"{base}/attempts/{attempt_id}"
        return {
            "attempt_id": attempt_id,
            "openai_base_url": f"{url}/v1",
            "anthropic_base_url": url,
            "reward_url": f"{url}/reward",
            "end_url": f"{url}/end",
        }

    def end(self, attempt: Attempt) -> Json:
        """Close an attempt and hand on its trajectory; return its outcome."""
        trajectory = self._end(attempt)
        return {
            "attempt_id": attempt.attempt_id,
            "status": "lost" if trajectory.is_lost else "recorded",
            "lost": attempt.lost,
            "detail": attempt.lost_because,
            "calls": len(attempt.graph),
            "windows": len(trajectory.windows),
            "sampled_tokens": sum(trajectory.action_mask),
        }

    def end_all(self) -> None:
        """End every attempt that is open."""
        for attempt_id in list(self._open):
            self._end(self._recorder.attempt(attempt_id))

    def _end(self, attempt: Attempt) -> Trajectory:
        asked, stack = self._open.pop(attempt.attempt_id)
        stack.close()
        self._recorder.close(attempt)
        trajectory = self._recorder.ended(
            attempt, None, task_id=asked.task_id, group_id=asked.group_id or asked.task_id
        )
        if not trajectory.is_lost:
            self._hand_on(trajectory)
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.over.set()
        return trajectory
