"""What findings mean for the data: which rows leave, and whether the run may go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from espalier.validation.expectations import SuiteName
from espalier.validation.judge import Finding

SHOWN_ROWS = 10
"""How many offending rows an error and the report name."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One suite's findings, over the rows whose task ids are `row_ids`."""

    suite: SuiteName
    row_ids: Sequence[str]
    findings: Sequence[Finding]

    @property
    def dropped(self) -> Mapping[int, tuple[str, ...]]:
        """Row -> names of the row-wise expectations that it breaks."""
        broken: dict[int, tuple[str, ...]] = {}
        for finding in self.findings:
            if not finding.expectation.critical:
                for row in finding.rows:
                    broken[row] = (*broken.get(row, ()), finding.expectation.name)
        return dict(sorted(broken.items()))

    def examples(self, finding: Finding) -> list[str]:
        """Task ids of the first rows that break it."""
        return [self.row_ids[row] for row in finding.rows[:SHOWN_ROWS]]

    def faults(self, max_dropped_share: float) -> list[str]:
        """One sentence for each reason to stop; none where the run may go on."""
        stopping = [f for f in self.findings if not f.success and _stops(f)]
        faults = [self._described(finding) for finding in stopping]
        dropped = self.dropped
        share = len(dropped) / max(1, len(self.row_ids))
        if share > max_dropped_share:
            ids = [self.row_ids[row] for row in list(dropped)[:SHOWN_ROWS]]
            names = sorted({name for broken in dropped.values() for name in broken})
            faults.append(
                f"{self.suite}: {len(dropped)} of {len(self.row_ids)} rows ({share:.1%}) break "
                f"{', '.join(names)}, more than validation.max_dropped_share="
                f"{max_dropped_share}: {_listed(ids, len(dropped))}"
            )
        return faults

    def _described(self, finding: Finding) -> str:
        expectation = finding.expectation
        where = _listed(self.examples(finding), len(finding.rows)) or finding.problem
        return (
            f"{self.suite}: expectation {expectation.name} failed ({expectation.reason}): {where}"
        )


def _stops(finding: Finding) -> bool:
    """Critical, or row-wise but unable to name rows: there is nothing that could be dropped."""
    return finding.expectation.critical or not finding.rows


def _listed(ids: Sequence[str], total: int) -> str:
    more = f" and {total - len(ids)} more" if total > len(ids) else ""
    return ", ".join(ids) + more
