"""On which figures the gate lets a challenger pass: its bounds, without a registry."""

from __future__ import annotations

import pytest

from espalier.config import RegistryConfig
from espalier.records import GroupChange
from espalier.registry import GateComparison, ModelVersion, PromotionGate


@pytest.fixture
def gate():
    def never(*_):
        raise AssertionError("the figures are there already")

    return PromotionGate(RegistryConfig(min_questions=100, min_gain=0.05), never, never)


def comparison(**figures):
    figures = {"questions": 100, "gain": 0.1, "low": 0.06, "high": 0.14} | figures
    return GateComparison("champion m/1", "d" * 64, challenger_em=0.5, baseline_em=0.4, **figures)


@pytest.mark.parametrize(
    ("figures", "first", "objection"),
    [
        ({}, False, None),
        ({"questions": 99}, False, "100 questions"),
        ({"questions": 99}, True, "100 questions"),
        ({"low": 0.05}, False, "registry.min_gain"),
        ({"low": 0.0501}, False, None),
        ({"low": 0.01}, True, None),
        ({"low": 0.0}, True, "above 0"),
        ({"low": float("nan")}, True, "above 0"),
    ],
)
def test_a_challenger_passes_above_the_least_gain(gate, figures, first, objection):
    found = gate.objection(comparison(**figures), first=first)
    if objection is None:
        assert found is None
    else:
        assert objection in found.reason


@pytest.mark.parametrize(
    ("figures", "advice"),
    [
        ({"questions": 99}, "documents"),
        ({"gain": 0.06, "low": -0.01}, "4,900 questions"),  # interval 7 times what lies above 5
        ({"gain": 0.04, "low": 0.01}, "Train further."),
        ({"gain": 0.0501, "low": 0.0}, "Train further."),  # millions of questions
        ({"gain": float("nan"), "low": float("nan")}, "Train further."),
    ],
)
def test_the_advice_fits_the_cause(gate, figures, advice):
    assert advice in gate.objection(comparison(**figures), first=False).advice


def test_a_group_that_fell_refuses_nothing(gate):
    fallen = (GroupChange("4 hops", -0.32, -0.48, -0.16, 50),)
    assert gate.objection(comparison(fallen=fallen), first=False) is None


@pytest.mark.parametrize(
    ("tags", "gate_state", "may_lead"),
    [
        ({}, "pending", False),
        ({"espalier.gate": "refused"}, "refused", False),
        ({"espalier.gate": "passed"}, "passed", True),
        ({"espalier.gate": "forced", "espalier.gate_reason": "leaks"}, "forced", True),
        ({"espalier.gate": "forced", "espalier.gate_reason": " "}, "forced", False),
        ({"espalier.gate": "refused", "espalier.gate_reason": "too few"}, "refused", False),
    ],
)
def test_a_version_may_lead_by_a_pass_or_a_reason(tags, gate_state, may_lead):
    version = ModelVersion(model="m", version="1", run_id="r", tags=tags, aliases=(), created="")
    assert (version.gate, version.may_lead) == (gate_state, may_lead)
    assert version.label == "m/1"
