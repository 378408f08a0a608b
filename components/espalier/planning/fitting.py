"""What exceeds a limit, and which keys would make it fit, found by planning again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from espalier.config import Profile, parse_profile
from espalier.records import ProfileError

Setting = tuple[str, object]
Ladder = Callable[[Profile], Iterator[Setting]]
"""Values of one key, from the mildest change to the strongest."""


class Remedy(NamedTuple):
    """A change of the profile, and what is needed with it."""

    settings: tuple[Setting, ...]
    needs: float

    @property
    def flags(self) -> str:
        """As `--set` takes it."""
        return " ".join(f"--set {key}={_spelled(value)}" for key, value in self.settings)


class Fault(NamedTuple):
    """A limit that is exceeded."""

    what: str
    """memory, accelerator memory, disk, hours or money."""
    needs: float
    limit: float
    remedies: tuple[Remedy, ...]
    """Each makes it fit by itself; none where no key of the profile does."""


def find_fault(
    what: str, profile: Profile, measure: Callable[[Profile], float], limit: float | None
) -> Fault | None:
    """Compare what a profile needs with a limit.

    Args:
        what: names the limit and the keys that are tried.
        profile: that is planned.
        measure: plans a profile, and says what it needs.
        limit: in the same unit; None allows everything.
    """
    needs = measure(profile)
    if limit is None or needs <= limit:
        return None
    return Fault(what, needs, limit, tuple(_remedies(profile, measure, limit, _LADDERS[what])))


def _remedies(
    profile: Profile,
    measure: Callable[[Profile], float],
    limit: float,
    ladders: Sequence[Ladder],
) -> Iterator[Remedy]:
    alone = [_first_that_fits(profile, measure, limit, ladder) for ladder in ladders]
    found = [remedy for remedy in alone if remedy is not None]
    if found:
        yield from found
        return
    together: tuple[Setting, ...] = ()
    for ladder in ladders:
        *_, strongest = [None, *ladder(profile)]
        if strongest is None:
            continue
        changed = _changed(profile, (*together, strongest))
        if changed is None:
            continue
        together = (*together, strongest)
        if (needs := measure(changed)) <= limit:
            yield Remedy(together, needs)
            return


def _first_that_fits(
    profile: Profile, measure: Callable[[Profile], float], limit: float, ladder: Ladder
) -> Remedy | None:
    for setting in ladder(profile):
        changed = _changed(profile, (setting,))
        if changed is not None and (needs := measure(changed)) <= limit:
            return Remedy((setting,), needs)
    return None


def _changed(profile: Profile, settings: Sequence[Setting]) -> Profile | None:
    """The profile with these settings; None where its sections would contradict each other."""
    try:
        return parse_profile(profile.model_dump(mode="json"), settings, Path(profile.name))
    except ProfileError:
        return None


def _halvings(key: str, value: int, least: int) -> Iterator[Setting]:
    while value // 2 >= least:
        value //= 2
        yield key, value


def _tenths(key: str, value: int) -> Iterator[Setting]:
    found = {max(1, value * tenths // 10): None for tenths in range(9, 0, -1)}
    yield from ((key, smaller) for smaller in found if smaller < value)


def _micro_batches(profile: Profile) -> Iterator[Setting]:
    # a shorter one holds no whole episode, and each is forwarded by itself then
    least = max(64, profile.episode.max_tokens)
    value = profile.hardware.micro_batch_tokens
    yield from _halvings("hardware.micro_batch_tokens", value, least)


def _rows(profile: Profile) -> Iterator[Setting]:
    yield from _halvings("rollout.max_rows", profile.rollout.max_rows, 8)


def _checkpointing(profile: Profile) -> Iterator[Setting]:
    if not profile.hardware.activation_checkpointing:
        yield "hardware.activation_checkpointing", True


def _sharding(profile: Profile) -> Iterator[Setting]:
    if profile.training.processes > 1 and not profile.training.sharded:
        yield "training.sharded", True


def _training_steps(profile: Profile) -> Iterator[Setting]:
    yield from _tenths("training.steps", profile.training.steps)


def _samples(profile: Profile) -> Iterator[Setting]:
    yield from _tenths("evaluation.samples_per_task", profile.evaluation.samples_per_task)


def _prestage_steps(profile: Profile) -> Iterator[Setting]:
    if profile.policy.model is None:
        yield from _tenths("policy.prestage.steps", profile.policy.prestage.steps)


def _train_tasks(profile: Profile) -> Iterator[Setting]:
    yield from _tenths("synthesis.train_tasks", profile.synthesis.train_tasks)


_SHORTER = (_training_steps, _samples, _prestage_steps)
_LADDERS: dict[str, tuple[Ladder, ...]] = {
    "memory": (_micro_batches, _rows, _checkpointing),
    "accelerator memory": (_micro_batches, _checkpointing, _sharding),
    "server memory": (_rows,),
    "disk": (_train_tasks,),
    "hours": _SHORTER,
    "money": _SHORTER,
}


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
