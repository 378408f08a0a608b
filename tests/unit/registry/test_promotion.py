"""The gate: what passes, what is refused, what is recorded, and the way back."""

from __future__ import annotations

import pytest

from espalier.records import RegistryError
from espalier.registry import promote, rollback, versions


def test_first_version_must_beat_its_own_warm_start(bench):
    bench.register(0.6, warm=0.3)
    promotion = promote(bench.model, bench.gate())
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
    bench.register(0.6, warm=0.3, fallen=20)
    promotion = promote(bench.model, bench.gate())
    fell = "4 hops -100.0 points [-100.0, -100.0]"
    assert str(promotion.comparison).endswith(f"; warning: fell in {fell}")
    assert bench.model.version("champion").tags["espalier.gate.fallen"] == fell


def test_a_worse_challenger_is_refused_with_figures(bench):
    bench.register(0.6)
    promote(bench.model, bench.gate())
    bench.register(0.5)
    with pytest.raises(RegistryError, match=r"50\.0% .*60\.0% .*/1 .*200"):
        promote(bench.model, bench.gate())
    assert bench.model.version("champion").version == "1"
    assert bench.model.find("previous") is None


def test_a_better_challenger_is_promoted_and_records_its_predecessor(bench):
    bench.register(0.6)
    promote(bench.model, bench.gate())
    bench.register(0.8)
    promotion = promote(bench.model, bench.gate())
    champion = bench.model.version("champion")
    assert (promotion.version, promotion.previous) == ("2", "1")
    assert champion.tags["espalier.previous_champion"] == "1"
    assert bench.model.version("previous").version == "1"


def test_a_gain_below_min_gain_is_refused(bench):
    bench.register(0.6)
    promote(bench.model, bench.gate())
    bench.register(0.7)
    gate = bench.gate()
    demanding = gate.config.model_copy(update={"min_gain": 0.2})
    with pytest.raises(RegistryError, match=r"min_gain"):
        promote(bench.model, type(gate)(demanding, gate.compare, gate.evaluate_champion))


def test_too_few_questions_never_pass(bench):
    bench.register(0.9, warm=0.0, n=199)
    with pytest.raises(RegistryError, match="200"):
        promote(bench.model, bench.gate())


def test_champion_is_evaluated_once_on_an_unknown_suite(bench):
    bench.register(0.9, suite="a" * 64)
    promote(bench.model, bench.gate())
    bench.register(0.6, suite="b" * 64)
    for _ in range(2):
        with pytest.raises(RegistryError, match=r"70\.0%"):
            promote(bench.model, bench.gate(champion_em=0.7))
    assert len(bench.judged) == 1


def test_forced_promotion_records_reason_who_and_when(bench):
    bench.register(0.6)
    promote(bench.model, bench.gate())
    bench.register(0.5)
    promote(bench.model, bench.gate(), force_reason="the suite leaks")
    champion = bench.model.version("champion")
    assert (champion.version, champion.gate) == ("2", "forced")
    assert champion.tags["espalier.gate_reason"] == "the suite leaks"
    assert {"espalier.forced_by", "espalier.forced_at"} <= champion.tags.keys()


def test_force_without_a_reason_is_refused(bench):
    bench.register(0.6)
    with pytest.raises(RegistryError, match="reason"):
        promote(bench.model, bench.gate(), force_reason="  ")


def test_rollback_returns_to_the_previous_champion_step_by_step(bench):
    for em in (0.4, 0.6, 0.8):
        bench.register(em, warm=0.1)
        promote(bench.model, bench.gate())
    led = [rollback(bench.model).version, rollback(bench.model).version]
    assert led == ["2", "1"]
    with pytest.raises(RegistryError, match="previous"):
        rollback(bench.model)
    assert bench.model.version("champion").version == "1"


def test_rollback_refuses_a_version_without_pass_or_reason(bench):
    bench.register(0.4, warm=0.1)
    promote(bench.model, bench.gate())
    bench.register(0.6)
    promote(bench.model, bench.gate())
    bench.model.tag(bench.model.version("1"), {"espalier.gate": "pending"})
    with pytest.raises(RegistryError, match="gate"):
        rollback(bench.model)
    assert bench.model.version("champion").version == "2"


def test_an_alias_moved_by_hand_is_not_compared_with(bench):
    bench.register(0.6)
    promote(bench.model, bench.gate())
    bench.register(0.1)
    bench.model.point("champion", bench.model.version("2"))
    with pytest.raises(RegistryError, match=r"champion .*/1"):
        promote(bench.model, bench.gate(), version="2")
    assert rollback(bench.model).version == "1"


def test_champion_is_not_promoted_twice(bench):
    bench.register(0.6)
    promote(bench.model, bench.gate())
    with pytest.raises(RegistryError, match="already"):
        promote(bench.model, bench.gate())


def test_versions_are_listed_newest_first(bench):
    bench.register(0.6)
    bench.register(0.7)
    listed = versions(bench.target.uri, bench.name)
    assert [(entry.version, entry.aliases) for entry in listed] == [
        ("2", ("challenger",)),
        ("1", ()),
    ]
    assert versions(bench.target.uri, "no-such-model") == []
