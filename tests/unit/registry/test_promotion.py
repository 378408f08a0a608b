"""The gate: what passes, what is refused, what is recorded, and the way back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from espalier.records import RegistryError
from espalier.registry import promote, rollback, versions


def test_first_version_must_beat_its_own_warm_start(bench):
    promotion = bench.lead(0.6, warm=0.3)
    champion = bench.model.version("champion")
    assert (champion.version, champion.gate, promotion.previous) == ("1", "passed", None)
    assert promotion.comparison.gain == pytest.approx(0.3)
    assert float(champion.tags["espalier.gate.low"]) > 0


def test_first_version_no_better_than_its_warm_start_is_refused(bench):
    bench.register(0.3, warm=0.3)
    with pytest.raises(RegistryError, match=r"EM 30\.0%"):
        promote(bench.model, bench.gate())
    assert bench.model.find("champion") is None
    assert bench.model.version("challenger").gate == "refused"


def test_a_promotion_names_the_groups_that_fell(bench):
    promotion = bench.lead(0.6, warm=0.3, fallen=20)
    (fell,) = promotion.comparison.fallen
    assert str(fell).startswith("4 hops -100.0")
    assert bench.model.version("champion").tags["espalier.gate.fallen"] == str(fell)


def test_a_worse_challenger_is_refused_with_figures(bench):
    bench.lead(0.6)
    bench.register(0.5)
    with pytest.raises(RegistryError, match=r"50\.0% .*60\.0%"):
        promote(bench.model, bench.gate())
    assert bench.model.version("champion").version == "1"
    assert bench.model.find("previous") is None


def test_a_better_challenger_is_promoted_and_records_its_predecessor(bench):
    bench.lead(0.6)
    promotion = bench.lead(0.8)
    champion = bench.model.version("champion")
    assert (promotion.version, promotion.previous) == ("2", "1")
    assert champion.tags["espalier.previous_champion"] == "1"
    assert bench.model.version("previous").version == "1"


def test_a_gain_below_min_gain_is_refused(bench):
    bench.lead(0.6)
    bench.register(0.7)
    gate = bench.gate()
    demanding = gate.config.model_copy(update={"min_gain": 0.2})
    with pytest.raises(RegistryError, match="min_gain"):
        promote(bench.model, replace(gate, config=demanding))


def test_champion_is_evaluated_once_on_an_unknown_suite(bench):
    bench.lead(0.9, suite="a" * 64)
    bench.register(0.6, suite="b" * 64)
    for _ in range(2):
        with pytest.raises(RegistryError, match=r"70\.0%"):
            promote(bench.model, bench.gate(champion_em=0.7))
    assert len(bench.judged) == 1


def test_forced_promotion_records_reason_who_and_when(bench):
    bench.lead(0.6)
    bench.register(0.5)
    with pytest.raises(RegistryError, match="reason"):
        promote(bench.model, bench.gate(), force_reason="  ")
    assert bench.model.version("champion").version == "1"
    promote(bench.model, bench.gate(), force_reason=" the suite leaks ")
    champion = bench.model.version("champion")
    assert (champion.version, champion.gate) == ("2", "forced")
    assert champion.tags["espalier.gate_reason"] == "the suite leaks"
    assert {"espalier.forced_by", "espalier.forced_at"} <= champion.tags.keys()


def test_rollback_returns_to_the_previous_champion_step_by_step(bench):
    bench.register(0.4, warm=0.1)
    with pytest.raises(RegistryError, match="champion"):
        rollback(bench.model)
    promote(bench.model, bench.gate())
    for em in (0.6, 0.8):
        bench.lead(em)
    led = [rollback(bench.model).version, rollback(bench.model).version]
    assert led == ["2", "1"]
    with pytest.raises(RegistryError, match="previous"):
        rollback(bench.model)
    assert bench.model.version("champion").version == "1"


def test_rollback_refuses_a_version_without_pass_or_reason(bench):
    bench.lead(0.4, warm=0.1)
    bench.lead(0.6)
    bench.model.tag(bench.model.version("1"), {"espalier.gate": "pending"})
    with pytest.raises(RegistryError, match="gate"):
        rollback(bench.model)
    assert bench.model.version("champion").version == "2"


def test_an_alias_moved_by_hand_is_not_compared_with(bench):
    bench.lead(0.6)
    bench.register(0.1)
    bench.model.point("champion", bench.model.version("2"))
    with pytest.raises(RegistryError, match=r"champion .*/1"):
        promote(bench.model, bench.gate(), version="2")
    assert rollback(bench.model).version == "1"


def test_an_alias_moved_by_hand_to_a_former_champion_counts(bench):
    bench.lead(0.4, warm=0.1)
    bench.lead(0.6)
    bench.model.point("champion", bench.model.version("1"))
    assert bench.lead(0.8).previous == "1"


def test_champion_is_not_promoted_twice(bench):
    bench.lead(0.6)
    with pytest.raises(RegistryError, match="already"):
        promote(bench.model, bench.gate())


def test_versions_are_listed_newest_first(bench):
    bench.register(0.6)
    bench.register(0.7)
    listed = versions(bench.target.uri, bench.name)
    found = [(entry.version, entry.aliases) for entry in listed]
    assert found == [("2", ("challenger",)), ("1", ())]
    assert versions(bench.target.uri, "no-such-model") == []
