"""The report (one self-contained HTML page) and the summary.json of a run.

reads     RUN/profile.json and the artifact folders of a finished or partly finished run
writes    RUN/report.html (write_report), RUN/summary.json (write_summary); for a step in
          Kubeflow's UI figures, a page and a text (step_views)
by hand   python -c "from pathlib import Path; from espalier.reporting import write_report;
          print(write_report(Path('runs/NAME')))"

run_directory                        the artifacts of a run, checked
summary                              the shape of summary.json
plots                                figures drawn from tables, as SVG
charts, comparison, dataset,         the sections of the page
transcripts, reward_terms
formats                              number formats
report, report_card, step_views      the pages: of a run, of `espalier evaluate`, of one stage
"""

from espalier.reporting.report import write_report
from espalier.reporting.summary import RunSummary, write_summary

__all__ = ["RunSummary", "write_report", "write_summary"]
