"""RUN/report.html: the installed package that writes it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import cast

from espalier.reporting.run_directory import open_run

ENTRY_POINTS = "espalier.reports"
"""A distribution names here, as `html`, what writes the report of a run: a function of the run's
folder and of the path of the file."""
INSTALLS = "`pip install espalier-agents-ui` writes report.html"
"""What to do where there is none."""


def write_report(run_dir: Path) -> Path | None:
    """Write RUN/report.html in one rename and return its path; None if no package writes it.

    Raises:
        ArtifactError: the folder is not a run, or an artifact was damaged after publishing.
    """
    open_run(run_dir)
    path = run_dir / "report.html"
    for point in metadata.entry_points(group=ENTRY_POINTS, name="html"):
        cast("Callable[[Path, Path], None]", point.load())(run_dir, path)
        return path
    return None
