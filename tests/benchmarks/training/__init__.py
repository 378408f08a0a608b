"""Throughput of training beside plain transformers and TRL, on the same model and data."""
