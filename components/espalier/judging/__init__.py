"""Judges: models that grade attempts by a rubric, and how far they agree.

    transcript -> a yes or no to each criterion, by each model -> majority -> score in [0, 1]

Answers are strict JSON, cached, counted and within a cost limit (`espalier.completions`). A judge
is no verifier: it pays a term beside the outcome, or decides tasks that no rule can decide.
"""

from espalier.judging.agreement import cohen_kappa, expected_kappa, fleiss_kappa
from espalier.judging.ensemble import JudgeEnsemble, JudgementMissingError, Verdict
from espalier.judging.rubric import Said, Transcript, judgement_type, transcript_of

__all__ = [
    "JudgeEnsemble",
    "JudgementMissingError",
    "Said",
    "Transcript",
    "Verdict",
    "cohen_kappa",
    "expected_kappa",
    "fleiss_kappa",
    "judgement_type",
    "transcript_of",
]
