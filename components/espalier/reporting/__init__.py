"""What a run leaves for people and for scripts: one self-contained HTML report, one summary.json.

    reads     RUN/profile.json and the artifact folders of a finished or partly finished run
    leaves    RUN/report.html (write_report), RUN/summary.json (write_summary)
    by hand   python -c "from pathlib import Path; from espalier.reporting import write_report;
              print(write_report(Path('runs/NAME')))"

Modules: `run_directory` finds and checks what a run published; `summary` documents the shape of
summary.json; `plots` draws figures from tables and `svg` embeds them; `flow`, `comparison`,
`transcripts` and `provenance` prepare one section of the page each, `dataset`, `rejections`,
`distributions` and `samples` that of the data; `report` assembles it.
"""

from espalier.reporting.report import write_report
from espalier.reporting.summary import Summary, write_summary

__all__ = ["Summary", "write_report", "write_summary"]
