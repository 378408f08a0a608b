"""Verifiers of answers, calls, programs and patches: one module for each upstream's rule."""
