"""Golden vectors: numbers of public RL code that the rules must reproduce, none left out silently.

A module `test_golden_<topic>.py` makes one test of two tables: family -> how to run a case of it,
and case -> why it is not run. A case that stands in neither fails the collection, and so does a
file of tests/golden that is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
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


def cases_of(topic: str) -> list[Case]:
    """All cases of a golden file."""
    return [_case(record) for record in golden_cases(topic)]


def golden_test(
    topic: str,
    runners: Mapping[str, Callable[[Case], None]],
    excluded: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Case], None]:
    """Return a test that runs every case of a topic by its family's runner.

    Args:
        topic: of a golden file.
        runners: by family, or a pattern of families (`verl_rs_*`); the longest that matches counts.
        excluded: the reason by case, or by a pattern of cases (`azr_learnability/*`).
    """
    params, used = [], set()
    for case in cases_of(topic):
        reasons = {p: why for p, why in excluded.items() if fnmatchcase(case.name, p)}
        used |= reasons.keys()
        if case.advisory or reasons:
            why = "advisory" if case.advisory else next(iter(reasons.values()))
            params.append(pytest.param(case, id=case.name, marks=pytest.mark.skip(reason=why)))
            continue
        patterns = [pattern for pattern in runners if fnmatchcase(case.family, pattern)]
        assert patterns, f"{case.name} is neither run nor excluded"
        used.add(max(patterns, key=len))
        params.append(pytest.param(case, id=case.name))
    assert used == {*runners, *excluded}, "an entry without a case"

    @pytest.mark.parametrize("case", params)
    def run(case: Case) -> None:
        patterns = [pattern for pattern in runners if fnmatchcase(case.family, pattern)]
        runners[max(patterns, key=len)](case)

    return run


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
