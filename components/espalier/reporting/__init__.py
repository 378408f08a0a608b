"""The report of a run as data, its summary.json, and pages of single steps and of evaluations.

reads     RUN/profile.json and the artifact folders of a finished or partly finished run
writes    RUN/summary.json (write_summary); RUN/report.html by an installed package (write_report)

run_directory                        the artifacts of a run, checked
summary                              the shape of summary.json
sections                             the report: sections of tables, as data
tables, comparison, dataset,         what the sections are made of
histories, reward_terms, transcripts
installed                            the package that writes report.html
report_card                          the page of `espalier evaluate`
step_views                           what Kubeflow's UI shows of a stage: figures, a page, a text
charts, plots, notices               what is on those pages
pages                                what these pages share
formats                              number formats
"""

from espalier.reporting.installed import INSTALLS, write_report
from espalier.reporting.run_directory import open_run
from espalier.reporting.sections import report_sections
from espalier.reporting.summary import RunSummary, write_summary
from espalier.reporting.tables import ReportTable, Section

__all__ = [
    "INSTALLS",
    "ReportTable",
    "RunSummary",
    "Section",
    "open_run",
    "report_sections",
    "write_report",
    "write_summary",
]
