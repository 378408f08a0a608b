"""What the health detectors of training noticed, as a table."""

from __future__ import annotations

import pandas as pd

from espalier.records.notices import NOTICES, read_notices
from espalier.reporting.formats import visible
from espalier.reporting.plots import Table, downloadable
from espalier.reporting.run_directory import RunDirectory


def notices_table(run: RunDirectory) -> Table | None:
    """The notices of reinforcement learning, oldest first; None where there are none.

    Task ids come from data, so invisible characters in them are spelled out.
    """
    artifact = run.artifacts.get("train")
    path = artifact.file(NOTICES) if artifact else None
    rows = [
        {
            "step": notice.step,
            "since": notice.since_step,
            "detector": notice.detector,
            "severity": notice.severity,
            "what": visible(notice.message),
            "attempts": visible(" ".join(notice.attempts[:3])),
            "key": notice.key,
            "done": notice.action,
        }
        for notice in (read_notices(path) if path else [])
    ]
    return downloadable(pd.DataFrame(rows), "notices.csv") if rows else None
