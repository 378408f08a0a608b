"""Golden vectors: numbers of public RL code that the rules must reproduce, none left out silently.

A module `test_golden_<topic>.py` makes one `Topic` of two tables: family -> how to run a case of
it, and case -> why it is not run. A case that stands in neither, or in both, fails the accounting.
The vectors live in tests/golden; a file that is missing fails the modules that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.golden_cases import golden_cases

SPECIAL = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@dataclass(frozen=True)
class Case:
    """One call of upstream code: `inputs` and `params` as plain data, and what came back."""

    name: str
    inputs: Mapping[str, Any]
    params: Mapping[str, Any]
    expected: Any
    rtol: float
    atol: float
    dtype: torch.dtype
    masked: bool
    """Only positions with mask 1 are part of the contract."""
    advisory: bool
    """Records an upstream artefact, which is no requirement."""

    @property
    def family(self) -> str:
        return self.name.split("/")[0]

    def tensor(self, name: str) -> Tensor:
        """An input of numbers, in the type that upstream ran in."""
        return torch.tensor(numbers(self.inputs[name]), dtype=self.dtype)

    def mask(self, name: str) -> Tensor:
        """A 0/1 input as bool."""
        return torch.tensor(self.inputs[name]).bool()

    def check(self, actual: Tensor | float, *path: str, mask: Tensor | None = None) -> None:
        """Compare with the expected number(s) at `path`; `mask` is obligatory in a masked case."""
        expected = self.expected
        for key in path:
            expected = expected[key]
        if not isinstance(actual, Tensor):
            actual = torch.tensor(actual, dtype=torch.float64)
        actual = actual.detach()
        wanted = torch.tensor(numbers(expected), dtype=actual.dtype)
        if self.masked:
            assert mask is not None, f"{self.name} is to be compared under its mask"
            assert actual.shape == wanted.shape
            actual, wanted = actual[mask], wanted[mask]
        torch.testing.assert_close(actual, wanted, rtol=self.rtol, atol=self.atol, equal_nan=True)


@dataclass(frozen=True)
class Topic:
    """One golden file and the two tables that account for all of its cases."""

    name: str
    runners: Mapping[str, Callable[[Case], None]]
    """Family, or a pattern of families (`verl_rs_*`; the longest that matches counts)."""
    excluded: Mapping[str, str]
    """Case name, or a pattern of names (`azr_learnability/*`), and the reason."""

    @cached_property
    def cases(self) -> list[Case]:
        """All cases of the file."""
        return [_case(record) for record in golden_cases(self.name)]

    def each_case(self) -> pytest.MarkDecorator:
        """Parametrises a test over `case`; excluded and advisory ones are skipped by reason."""
        params = []
        for case in self.cases:
            reason = self.reason_against(case)
            marks = [pytest.mark.skip(reason=f"{case.name}: {reason}")] if reason else []
            params.append(pytest.param(case, id=case.name, marks=marks))
        return pytest.mark.parametrize("case", params)

    def reason_against(self, case: Case) -> str | None:
        """Why `case` is not run."""
        if case.advisory:
            return "advisory"
        return next(
            (why for name, why in self.excluded.items() if fnmatchcase(case.name, name)), None
        )

    def run(self, case: Case) -> None:
        """Run one case by its family's runner."""
        self.runners[max(self._patterns(case), key=len)](case)

    def check_accounts(self) -> None:
        """Every case is run or excluded, and no entry of the tables stands for nothing."""
        excluded = [case for case in self.cases if self.reason_against(case)]
        run = [case for case in self.cases if case not in excluded]
        assert not [case.name for case in run if not self._patterns(case)], (
            "neither run nor excluded"
        )
        used = {max(self._patterns(case), key=len) for case in run}
        assert not set(self.runners) - used, "runners without a case"
        names = [case.name for case in self.cases]
        idle = [p for p in self.excluded if not any(fnmatchcase(name, p) for name in names)]
        assert not idle, "exclusions without a case"

    def _patterns(self, case: Case) -> list[str]:
        return [pattern for pattern in self.runners if fnmatchcase(case.family, pattern)]


def numbers(value: Any) -> Any:
    """Nested lists with the names of special values turned into floats, and None into nan."""
    if isinstance(value, list):
        return [numbers(item) for item in value]
    if value is None:
        return float("nan")
    return SPECIAL[value] if isinstance(value, str) else value


def _case(record: Mapping[str, Any]) -> Case:
    tolerance = record["tolerance"]
    exact = tolerance == "exact"
    return Case(
        name=record["name"],
        inputs=record["inputs"],
        params=record["params"],
        expected=record["expected"],
        rtol=0.0 if exact else tolerance["rtol"],
        atol=0.0 if exact else tolerance["atol"],
        dtype=getattr(torch, record.get("dtype", "float64")),
        masked=record.get("compare") == "masked",
        advisory=record.get("advisory", False),
    )
