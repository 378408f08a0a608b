"""Suites run with Great Expectations, and the verdict: rows to drop, or reasons to stop the run.

The library takes seconds to import, so it is imported on the first call.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from espalier.records import DataError
from espalier.validation.suites import Expectation

if TYPE_CHECKING:
    import pandas as pd
from espalier.validation.suites import SuiteName

ROW_COLUMN = "row"
"""The column with row numbers that each frame must have; results refer to them."""


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    """The result of one expectation."""

    expectation: Expectation
    success: bool
    rows: tuple[int, ...]
    """Failing rows, in order; empty for an expectation about the whole table."""
    problem: str
    """The observed value or error if no row can be named; else empty."""
    observed: tuple[str, ...] = ()
    """Distinct values of the first failing rows."""


def judge(frame: pd.DataFrame, suite: Sequence[Expectation]) -> tuple[ExpectationResult, ...]:
    """Run `suite` over `frame` in an ephemeral context, and return results in the suite's order.

    Analytics, data docs and progress bars are off: the library sends and writes nothing.

    Raises:
        DataError: a rule does not exist or does not take its arguments.
    """
    gx = _great_expectations()
    context = gx.get_context(mode="ephemeral")
    # The setter takes a plain dictionary; its annotation names the library's own config class.
    context.variables.progress_bars = {"globally": False}  # pyright: ignore[reportAttributeAccessIssue]
    asset = context.data_sources.add_pandas("espalier").add_dataframe_asset("table")
    gx_suite = gx.ExpectationSuite(name="suite", expectations=[_translated(e) for e in suite])
    definition = gx.ValidationDefinition(
        name="table",
        data=asset.add_batch_definition_whole_dataframe("all"),
        suite=context.suites.add(gx_suite),
    )
    checkpoint = gx.Checkpoint(
        name="table",
        validation_definitions=[context.validation_definitions.add(definition)],
        result_format={
            "result_format": "COMPLETE",
            "unexpected_index_column_names": [ROW_COLUMN],
            "return_unexpected_index_query": False,
        },
    )
    outcome = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
    (validation,) = outcome.run_results.values()
    # The library returns results in an order of its own.
    by_name = {_name(result): result for result in validation.results}
    return tuple(_finding(expectation, by_name[expectation.name]) for expectation in suite)


def _great_expectations() -> Any:  # noqa: ANN401 (a module)
    # Read when the library is imported; by default it sends usage statistics.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():
        # 1.24 imports the deprecated sre_constants; users of espalier cannot change that.
        warnings.simplefilter("ignore", DeprecationWarning)
        import great_expectations

    # It logs every temporary folder. Some of its modules set a level of their own, which overrides
    # the level of the package.
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] == "great_expectations":
            logging.getLogger(name).setLevel(logging.WARNING)
    return great_expectations


def _translated(expectation: Expectation) -> Any:  # noqa: ANN401 (a class of the library, by name)
    rule = expectation.rule
    severity = "critical" if expectation.critical else "warning"
    try:
        build = getattr(_great_expectations().expectations, rule.kind)
        return build(**rule.arguments, severity=severity, meta={"name": expectation.name})
    except (AttributeError, ValueError) as error:
        # the library names neither the suite nor the expectation
        raise DataError(
            f"{expectation.suite}: expectation {expectation.name} cannot be checked: {rule.kind} "
            f"does not take {dict(rule.arguments)}: {error}"
        ) from error


def _name(result: Any) -> str:  # noqa: ANN401 (the library's result is untyped here)
    return result.expectation_config.meta["name"]


def _finding(expectation: Expectation, result: Any) -> ExpectationResult:  # noqa: ANN401 (as above)
    if result.success:
        return ExpectationResult(expectation, success=True, rows=(), problem="")
    details: Mapping[str, Any] = result.result
    found = details.get("unexpected_index_list") or ()
    values = {int(entry[ROW_COLUMN]): entry.get(expectation.rule.column) for entry in found}
    rows = tuple(sorted(values))
    problem = "" if rows else _problem(result.exception_info, details)
    observed = [values[row] for row in rows[:SHOWN_ROWS] if values[row] is not None]
    shown = dict.fromkeys(_cut(str(value)) for value in observed)
    return ExpectationResult(
        expectation,
        success=False,
        rows=rows,
        problem=problem,
        observed=tuple(shown)[:_SHOWN_VALUES],
    )


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _problem(exception_info: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    if "raised_exception" in exception_info:  # otherwise: one entry for each failed metric
        exception_info = {"": exception_info}
    messages = sorted(
        {
            str(entry["exception_message"])
            for entry in exception_info.values()
            if entry["raised_exception"]
        }
    )
    return "; ".join(messages) or f"found {details.get('observed_value')}"


SHOWN_ROWS = 10
"""Number of failing rows that errors and the report name."""
_SHOWN_VALUES = 3
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class SuiteVerdict:
    """The results of one suite over the rows with ids `row_ids`."""

    suite: SuiteName
    row_ids: Sequence[str]
    findings: Sequence[ExpectationResult]

    @property
    def dropped(self) -> Mapping[int, tuple[str, ...]]:
        """Row to drop -> names of the row-wise expectations that it fails."""
        broken: dict[int, tuple[str, ...]] = {}
        for finding in self.findings:
            if not finding.expectation.critical:
                for row in finding.rows:
                    broken[row] = (*broken.get(row, ()), finding.expectation.name)
        return dict(sorted(broken.items()))

    def examples(self, finding: ExpectationResult) -> list[str]:
        """Ids of the first failing rows."""
        return [self.row_ids[row] for row in finding.rows[:SHOWN_ROWS]]

    def faults(self, max_dropped_share: float) -> list[str]:
        """One sentence per reason to stop the run; none if it may continue."""
        # one that is critical, or that names no rows which could be dropped, stops the run
        failed = [finding for finding in self.findings if not finding.success]
        stopping = [found for found in failed if found.expectation.critical or not found.rows]
        faults = [self._described(finding) for finding in stopping]
        dropped = self.dropped
        share = len(dropped) / max(1, len(self.row_ids))
        if share > max_dropped_share:
            ids = [self.row_ids[row] for row in list(dropped)[:SHOWN_ROWS]]
            broken = sorted(
                (finding for finding in self.findings if not finding.expectation.critical),
                key=lambda finding: finding.expectation.name,
            )
            names = [_with_values(finding) for finding in broken if finding.rows]
            faults.append(
                f"{self.suite}: {len(dropped)} of {len(self.row_ids)} rows ({share:.1%}) break "
                f"{', '.join(names)}, more than validation.max_dropped_share="
                f"{max_dropped_share}: {_listed(ids, len(dropped))}"
            )
        return faults

    def _described(self, finding: ExpectationResult) -> str:
        expectation = finding.expectation
        column = f" on column {name}" if (name := expectation.rule.column) else ""
        found = f"found {', '.join(finding.observed)} in " if finding.observed else ""
        where = _listed(self.examples(finding), len(finding.rows)) or finding.problem
        return (
            f"{self.suite}: expectation {expectation.name} failed{column} "
            f"({expectation.reason}): {found}{where}"
        )


def _with_values(finding: ExpectationResult) -> str:
    """The name of a row-wise expectation, its column, and the values observed there."""
    expectation = finding.expectation
    if not expectation.rule.column or not finding.observed:
        return expectation.name
    found = ", ".join(finding.observed)
    return f"{expectation.name} (column {expectation.rule.column}: found {found})"


def _listed(ids: Sequence[str], total: int) -> str:
    more = f" and {total - len(ids)} more" if total > len(ids) else ""
    return ", ".join(ids) + more
