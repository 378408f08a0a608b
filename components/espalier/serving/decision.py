"""What to do next, from what is asked for and what there is; no clock, no network, no memory.

The same look at the world always gives the same step, so it does not matter how often, or by whom,
it is taken: a controller that was killed goes on where it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from espalier.serving.champion import Champion
from espalier.serving.rollout_state import Progress, RolloutState


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do now."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The alias points at a version that may not be served; what is served stays."""

    champion: Champion


@dataclass(frozen=True, slots=True)
class Roll:
    """Serve another version."""

    version: str
    why: str


@dataclass(frozen=True, slots=True)
class CheckHealth:
    """All pods are ready: ask the service itself whether it answers as this version."""

    champion: Champion


@dataclass(frozen=True, slots=True)
class Fail:
    """The promotion's roll-out failed; the next step goes back."""

    champion: Champion
    reason: str


Step: TypeAlias = Wait | Refuse | Roll | CheckHealth | Fail


def decide(champion: Champion | None, state: RolloutState) -> Step:
    """The next step towards serving the champion.

    Args:
        champion: where the alias points; None where there is none.
        state: of the Deployment.
    """
    memory = state.memory
    if champion is None:
        return Wait("there is no champion")
    if not champion.may_lead:
        return Refuse(champion)
    if memory.failed == champion.promotion:
        return _after_failure(champion, state)
    if state.asked != champion.version:
        return Roll(champion.version, f"champion is version {champion.version}")
    if state.progress is Progress.ROLLING:
        return Wait(f"version {champion.version} is being rolled out")
    was_good = memory.last_good == champion.version
    if state.progress is Progress.STUCK:
        # a version that was ready before is not to blame for what else was changed
        return Wait(f"stuck: {state.reason}") if was_good else Fail(champion, state.reason)
    if not was_good or memory.failed is not None:
        return CheckHealth(champion)
    return Wait(f"version {champion.version} is served")


def _after_failure(champion: Champion, state: RolloutState) -> Step:
    """Back to what was good, and there until the alias is moved, or the version promoted anew."""
    good = state.memory.last_good
    if good is None or good == champion.version:
        return Wait(f"version {champion.version} failed, and none was good before it")
    if state.asked != good:
        return Roll(good, f"version {champion.version} failed: {state.memory.failed_reason}")
    return Wait(f"version {good} is served, because {champion.version} failed")
