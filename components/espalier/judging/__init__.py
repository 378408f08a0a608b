"""Judges: models that grade trajectories by a rubric, and how far they agree.

    transcript -> each model answers yes or no to each criterion -> majority -> score in [0, 1]

Answers are strict JSON, cached, counted and within a cost limit (`espalier.completions`). A judge
is not a verifier: its score is one term of the reward beside the outcome, or decides tasks for
which no rule exists.
"""

from espalier.judging.agreement import cohen_kappa, expected_kappa, fleiss_kappa
from espalier.judging.ensemble import JudgeEnsemble, JudgementMissingError, Verdict
from espalier.judging.rubric import Transcript, TranscriptMessage, judgement_type, transcript_of

__all__ = [
    "JudgeEnsemble",
    "JudgementMissingError",
    "Transcript",
    "TranscriptMessage",
    "Verdict",
    "cohen_kappa",
    "expected_kappa",
    "fleiss_kappa",
    "judgement_type",
    "transcript_of",
]
