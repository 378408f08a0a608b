"""The report (one self-contained HTML page) and the summary.json of a run.

    reads     RUN/profile.json and the artifact folders of a finished or partly finished run
    leaves    RUN/report.html (write_report), RUN/summary.json (write_summary); for a step of
              Kubeflow figures, a page and a text (step_views)
    by hand   python -c "from pathlib import Path; from espalier.reporting import write_report;
              print(write_report(Path('runs/NAME')))"

Modules: `run_directory` finds and checks what a run published; `summary` documents the shape of
summary.json; `plots` draws figures from tables and embeds them as SVG; `charts`, `comparison`,
`dataset` and `transcripts` prepare the sections of the page, with the number formats of
`formats`; `report` assembles them, and `step_views` those of one stage.
"""

from espalier.reporting.report import write_report
from espalier.reporting.summary import RunSummary, write_summary

__all__ = ["RunSummary", "write_report", "write_summary"]
