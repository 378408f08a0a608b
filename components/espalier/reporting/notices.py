"""What the health detectors of training noticed, as a table."""

from __future__ import annotations

import pandas as pd

from espalier.records.notices import NOTICES, read_notices
from espalier.records.streams import STREAMS_FOLDER
from espalier.reporting.formats import visible
from espalier.reporting.plots import Table, downloadable
from espalier.reporting.run_directory import RunDirectory


def notices_table(run: RunDirectory) -> Table | None:
    """The notices of reinforcement learning, oldest first; None where there are none.

    Task ids come from data, so invisible characters in them are spelled out.
    """
    artifact = run.artifacts.get("train")
    if artifact is None:
        return None
    for name in artifact.manifest.files:
        if name.startswith(f"{STREAMS_FOLDER}/{NOTICES}-"):
            artifact.file(name)  # its bytes are those that were published
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
        for notice in read_notices(artifact.path / STREAMS_FOLDER)
    ]
    return downloadable(pd.DataFrame(rows), "notices.csv") if rows else None
