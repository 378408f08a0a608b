"""The reward of a program that was run against unit tests.

    all         1 where every test passes, else 0: HumanEval's and MBPP's own rule
    share       1 where every test passes, else the share that does, minus 1: -1 to below 0
    coderl      1 all pass, -0.3 a test fails, -0.6 one ends by an error, -1 it does not compile
                (CodeRL, Le et al. 2022, arXiv:2207.01780, sec. 3.3)

PPOCoder's compiler signal is a separate term that can be added to each: `compile_term`.
Only a program that passes every test gets more than 0: in every reported rate, above 0 means right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

Verdict = Literal["passed", "failed", "error"]
UnitTestRule = Literal["all", "share", "coderl"]


@dataclass(frozen=True, slots=True)
class TestReport:
    """The results of a program's tests.

    A program that compiles, passes the first test and raises in the second:

        compiled    True
        verdicts    ("passed", "error")
    """

    __test__ = False  # not a class of tests, although pytest would take it for one by its name

    compiled: bool
    verdicts: tuple[Verdict, ...]
    """The verdict of each test, in order; "error" means that the program raised, exited, or took
    too long."""

    @property
    def num_passed(self) -> int:
        """Number of tests that passed."""
        return self.verdicts.count("passed")

    @property
    def all_passed(self) -> bool:
        """Whether every test passed; False without tests."""
        return bool(self.verdicts) and self.num_passed == len(self.verdicts)


OUTCOME_SPANS: dict[UnitTestRule, tuple[float, float]] = {
    "all": (0.0, 1.0),
    "share": (-1.0, 1.0),
    "coderl": (-1.0, 1.0),
}
"""Range of `unit_test_reward` by rule."""

_COMPILE_ERROR, _RUNTIME_ERROR, _FAILED_TEST, _PASSED = -1.0, -0.6, -0.3, 1.0
"""CodeRL's scale."""


def unit_test_reward(report: TestReport, rule: UnitTestRule) -> float:
    """Return the outcome of a program by one of the rules above."""
    if report.all_passed:
        return _PASSED
    match rule:
        case "all":
            return 0.0
        case "share":
            return report.num_passed / max(1, len(report.verdicts)) - 1.0
        case "coderl":
            if not report.compiled:
                return _COMPILE_ERROR
            return _RUNTIME_ERROR if "error" in report.verdicts else _FAILED_TEST
    assert_never(rule)


def compile_term(report: TestReport, weight: float) -> float:
    """Return `weight` for a program that compiles, and `-weight` for one that does not.

    This is PPOCoder's compiler signal of +1 and -1 (Shojaee et al. 2023, arXiv:2301.13816). Its
    terms for syntax trees and data flow are in `code_match`.
    """
    return weight if report.compiled else -weight
