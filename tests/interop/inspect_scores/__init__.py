"""Verdicts of our verifiers beside those of inspect_evals' scorers, on the same outputs."""
