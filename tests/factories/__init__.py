"""Builders of policies, records, batches and artifacts for tests."""
