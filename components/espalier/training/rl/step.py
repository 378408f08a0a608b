"""What an update must know of the step that it belongs to."""

from __future__ import annotations

from typing import NamedTuple

from espalier.rollout.engines.engine import KindChoice
from espalier.training.distribution import ScoreRequest


class Step(NamedTuple):
    """One turn of the loop."""

    number: int
    """Optimizer steps done before; also the version of the weights."""
    request: ScoreRequest
    """The distribution that the step's trajectories were sampled from."""
    kind_choice: KindChoice | None = None
    """What was mixed into it where actions begin."""
