"""Moving `@champion`: by the gate, by force with a reason, and back again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from espalier.records import RegistryError
from espalier.registry.gate import Comparison, PromotionGate
from espalier.registry.model import (
    CHALLENGER,
    CHAMPION,
    CHAMPION_SINCE,
    FORCED,
    GATE,
    GATE_REASON,
    PASSED,
    PENDING,
    PREVIOUS,
    PREVIOUS_CHAMPION,
    REFUSED,
    ModelVersion,
    RegisteredModel,
)
from espalier.registry.source import operator


class Promotion(NamedTuple):
    """What a promotion or a rollback did."""

    model: str
    version: str
    previous: str | None
    gate: str
    comparison: Comparison | None


def promote(
    model: RegisteredModel,
    gate: PromotionGate,
    *,
    version: str | None = None,
    force_reason: str | None = None,
) -> Promotion:
    """Make a version (default: the challenger) champion, if it passes the gate or is forced.

    Raises:
        RegistryError: the gate refuses (with the figures), there is no such version, or it leads
            already. No alias has moved then.
    """
    challenger = model.version(version or CHALLENGER)
    holder = model.find(CHAMPION)
    if holder and holder.version == challenger.version and holder.may_lead:
        raise RegistryError(f"{challenger.label} is the champion already.")
    champion = _leading(model, holder, challenger)
    if force_reason is not None:
        comparison, record = None, _forced(force_reason)
    else:
        comparison = gate.judge(model, challenger, champion)
        objection = gate.objection(comparison, first=champion is None)
        if objection:
            _refuse(model, challenger, comparison, objection)
        record = {GATE: PASSED, GATE_REASON: str(comparison), **_figures(comparison)}
    _hand_over(model, challenger, champion, record)
    previous = champion.version if champion else None
    return Promotion(model.name, challenger.version, previous, record[GATE], comparison)


def rollback(model: RegisteredModel) -> Promotion:
    """Move `champion` back to the version that led before.

    Raises:
        RegistryError: there is no champion, nothing led before it, or what led before carries
            neither a gate pass nor a forced promotion's reason.
    """
    holder = model.find(CHAMPION)
    if holder is None:
        raise RegistryError(f"{model.name}: there is no champion to roll back.")
    if holder.may_lead:
        number = holder.tags.get(PREVIOUS_CHAMPION)
        target = model.find(number) if number else None
    else:  # the alias was moved by hand, past the gate: the last real champion comes back
        target = _leading(model, holder, holder)
    if target is None:
        raise RegistryError(
            f"{holder.label} has no previous champion to return to. Promote another version with "
            "--version N."
        )
    if not target.may_lead:
        raise RegistryError(
            f"{target.label} led before {holder.label}, but carries neither a gate pass nor a "
            f"forced promotion's reason (gate: {target.gate}). Promote it: --version "
            f"{target.version}, with --force REASON if need be."
        )
    before = target.tags.get(PREVIOUS_CHAMPION)
    model.point(PREVIOUS, model.find(before) if before else None)
    model.point(CHAMPION, target)
    model.tag(target, {CHAMPION_SINCE: _now()})
    return Promotion(model.name, target.version, holder.version, target.gate, None)


def _leading(
    model: RegisteredModel, holder: ModelVersion | None, other_than: ModelVersion
) -> ModelVersion | None:
    """The alias's version, if it leads in right; else the one that last did.

    An alias can be moved by hand past the gate: what it points at then is nobody's measure.
    """
    if holder and holder.may_lead and holder.version != other_than.version:
        return holder
    led = [
        version
        for version in model.versions()
        if version.may_lead
        and version.version != other_than.version
        and CHAMPION_SINCE in version.tags
    ]
    return max(led, key=lambda version: version.tags[CHAMPION_SINCE], default=None)


def _hand_over(
    model: RegisteredModel,
    challenger: ModelVersion,
    champion: ModelVersion | None,
    record: Mapping[str, str],
) -> None:
    """The record first, the aliases last: a champion without a recorded pass never exists."""
    before = {PREVIOUS_CHAMPION: champion.version} if champion else {}
    model.tag(challenger, {**record, **before})
    if champion:
        model.point(PREVIOUS, champion)
    model.point(CHAMPION, challenger)
    model.tag(challenger, {CHAMPION_SINCE: _now()})


def _refuse(
    model: RegisteredModel, challenger: ModelVersion, comparison: Comparison, objection: str
) -> None:
    if challenger.gate in (PENDING, REFUSED):  # a pass of former days stays, for rollback
        record = {GATE: REFUSED, GATE_REASON: f"{objection}: {comparison}"}
        model.tag(challenger, {**record, **_figures(comparison)})
    raise RegistryError(
        f"{challenger.label} is not promoted: {objection}; found {comparison}. Nothing was moved. "
        "Train further, or promote it with --force REASON."
    )


def _forced(reason: str) -> dict[str, str]:
    if not reason.strip():
        raise RegistryError("a forced promotion needs a reason: --force 'why the gate is wrong'")
    return {
        GATE: FORCED,
        GATE_REASON: reason.strip(),
        "espalier.forced_by": operator(),
        "espalier.forced_at": _now(),
    }


def _figures(comparison: Comparison) -> dict[str, str]:
    return {f"espalier.gate.{key}": f"{value}" for key, value in comparison._asdict().items()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
