"""Asks a canary and the former version, and keeps what they answered at the present step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from espalier.config import CanaryConfig
from espalier.serving.asking import Address, Asker, questions_of
from espalier.serving.decision import Judging, RolloutMemory
from espalier.serving.score import ServedScore, StepAnswers


def utc_now() -> datetime:
    """The present moment."""
    return datetime.now(UTC)


class CanaryJudge:
    """The answers of one step of one promotion; a new step, or a new controller, begins anew."""

    def __init__(
        self,
        config: CanaryConfig,
        key: str | None = None,
        *,
        verify: bool = True,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """Judge by these bounds.

        Args:
            config: questions and bounds.
            key: API key, where the servers want one.
            verify: whether certificates are checked.
            now: the time, with its zone.
        """
        self.config = config
        self._key = key
        self._verify = verify
        self._now = now
        self._asker: Asker | None = None
        self._step: tuple[str | None, int] = (None, 0)
        self._answers: StepAnswers | None = None

    @property
    def score(self) -> ServedScore | None:
        """Of the step that was asked last; None where nothing was asked."""
        return None if self._answers is None else self._answers.score

    def score_of(self, promotion: str) -> ServedScore | None:
        """Of the last step of a promotion; None where nothing was asked, or another one since."""
        return self.score if self._step[0] == promotion else None

    def now(self) -> datetime:
        """The time, with its zone."""
        return self._now()

    def judging(self, memory: RolloutMemory) -> Judging:
        """What the step of a canary is judged by."""
        is_present = self._step == (memory.canary, memory.step)
        return Judging(
            config=self.config,
            now=self._now(),
            score=self.score if is_present else None,
            graded=self._asker.graded if self._asker else 0,
        )

    def ask(self, memory: RolloutMemory, former: Address, canary: Address) -> ServedScore:
        """Ask both the next questions; the file of questions is read anew for each step.

        Raises:
            ServingError: the file of questions cannot be used.
        """
        step = (memory.canary, memory.step)
        if self._asker is None or self._step != step:
            questions = questions_of(self.config)
            self._asker = Asker(self.config, questions, self._key, verify=self._verify)
            self._step, self._answers = step, None
        pairs = self._asker.ask(former, canary)
        self._answers = self._answers or StepAnswers()
        self._answers.add(pairs)
        return self._answers.score
