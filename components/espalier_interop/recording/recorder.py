"""The open attempts, and the outcomes of ended ones; an ended attempt itself is forgotten."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from espalier.records.trajectory import FinishReason, Trajectory
from espalier.rollout.engines.engine import Engine, Sampling
from espalier.wire.requests import Refusal
from espalier_interop.recording.attempt import Attempt, CallLimits, Policy
from espalier_interop.recording.graph import AttemptOutcome, trajectory_of


@dataclass(slots=True)
class RecorderCounts:
    """Counts of the endpoint since its start."""

    begun: int = 0
    whole: int = 0
    """Number of attempts that ended with a complete trajectory."""
    lost: Counter[FinishReason] = field(default_factory=Counter[FinishReason])
    """Number of attempts that ended without one, by reason."""
    calls: int = 0
    """Number of calls of ended attempts."""
    branches: int = 0
    """Number of windows of ended attempts beyond the first of each."""
    foreign_messages: int = 0
    requests: Counter[int] = field(default_factory=Counter[int])
    """Number of requests by status."""
    closed_connections: Counter[str] = field(default_factory=Counter[str])

    def count_closed(self, cause: str) -> None:
        """Count a connection that the server closed, by its cause."""
        self.closed_connections[cause] += 1

    def count_request(self, route: str, status: int) -> None:
        """Count a request by its route and status."""
        del route
        self.requests[status] += 1


class Recorder:
    """Opens attempts for a policy, and turns them into trajectories."""

    def __init__(self, policy: Policy, limits: CallLimits) -> None:
        self._policy = policy
        self._limits = limits
        self._open: dict[str, Attempt] = {}
        self.counts = RecorderCounts()

    @property
    def engine(self) -> Engine:
        """The engine that samples the answers."""
        return self._policy.engine

    @property
    def open_attempts(self) -> int:
        """Number of attempts that have not ended."""
        return len(self._open)

    def begin(self, *, sampling: Sampling | None = None) -> Attempt:
        """Open an attempt; its id is the secret that gives access to it."""
        attempt = Attempt(secrets.token_urlsafe(18), self._policy, self._limits, sampling)
        self._open[attempt.attempt_id] = attempt
        self.counts.begun += 1
        return attempt

    def attempt(self, attempt_id: str) -> Attempt:
        """Return an open attempt.

        Raises:
            Refusal: no attempt is open under that id.
        """
        found = self._open.get(attempt_id)
        if found is None:
            raise Refusal(
                404,
                "no attempt is open under this address: it has ended, or was never begun",
                code="attempt_not_open",
            )
        return found

    @contextmanager
    def deadline(
        self, attempt: Attempt, seconds: float, on_expiry: Callable[[], object] | None = None
    ) -> Generator[None]:
        """Within the block the attempt is lost once its time is over."""

        def expire() -> None:
            attempt.lose(FinishReason.TIMEOUT, f"it was not over within {seconds:g} s")
            if on_expiry is not None:
                on_expiry()

        timer = asyncio.get_running_loop().call_later(seconds, expire)
        try:
            yield
        finally:
            timer.cancel()

    def close(self, attempt: Attempt) -> None:
        """Accept no further call of an attempt; it is lost if a call is still open."""
        self._open.pop(attempt.attempt_id, None)
        if attempt.open_calls:
            attempt.lose(
                FinishReason.LOST_CALL,
                f"{attempt.open_calls} calls were still open when the attempt ended",
            )
        if attempt.lost is None and not len(attempt.graph):
            attempt.lose(FinishReason.AGENT_FAILED, "it ended without a call")

    def ended(
        self, attempt: Attempt, verdict: AttemptOutcome | None, *, task_id: str, group_id: str
    ) -> Trajectory:
        """Return the trajectory of a closed attempt; lost, without a reward, where it has none.

        Args:
            attempt: the closed attempt.
            verdict: its reward; None takes the reward that was posted.
            task_id: task of the trajectory.
            group_id: group of the trajectory; shared by attempts that are compared with each other.
        """
        if verdict is None and attempt.lost is None:
            if attempt.reward is None:
                attempt.lose(FinishReason.NO_REWARD, "it ended without a reward")
            else:
                answer = attempt.last_answer
                verdict = AttemptOutcome(attempt.reward, answer, FinishReason.ANSWERED)
        if verdict is None or attempt.lost is not None:
            assert attempt.lost is not None, "without a verdict it is lost"
            self.counts.lost[attempt.lost] += 1
            verdict = AttemptOutcome({}, None, attempt.lost)
        else:
            self.counts.whole += 1
        trajectory = trajectory_of(
            attempt.graph,
            verdict,
            task_id=task_id,
            group_id=group_id,
        )
        self.counts.calls += len(attempt.graph)
        self.counts.branches += max(0, len(trajectory.windows) - 1)
        self.counts.foreign_messages += attempt.foreign_messages
        return trajectory
