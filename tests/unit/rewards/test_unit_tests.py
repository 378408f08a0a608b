import pytest

from espalier.rewards.unit_tests import OUTCOME_SPANS, TestReport, compile_term, unit_test_reward

CASES = [
    # compiled, verdicts, all, share, coderl
    (True, ("passed", "passed"), 1.0, 1.0, 1.0),
    (True, ("passed", "failed"), 0.0, -0.5, -0.3),
    (True, ("passed", "error"), 0.0, -0.5, -0.6),
    (True, ("failed", "failed"), 0.0, -1.0, -0.3),
    (False, ("error", "error"), 0.0, -1.0, -1.0),
    (True, (), 0.0, -1.0, -0.3),
]


@pytest.mark.parametrize(("compiled", "verdicts", "whole", "share", "coderl"), CASES)
def test_hand_computed_rewards_of_unit_tests(compiled, verdicts, whole, share, coderl):
    report = TestReport(compiled=compiled, verdicts=verdicts)
    found = {rule: unit_test_reward(report, rule) for rule in OUTCOME_SPANS}
    assert found == pytest.approx({"all": whole, "share": share, "coderl": coderl})
    for rule, (low, high) in OUTCOME_SPANS.items():
        assert low <= found[rule] <= high
        assert (found[rule] > 0) == report.all_passed


def test_compiling_pays_what_not_compiling_costs():
    assert compile_term(TestReport(compiled=True, verdicts=()), 0.1) == 0.1
    assert compile_term(TestReport(compiled=False, verdicts=()), 0.1) == -0.1
