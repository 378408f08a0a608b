"""Attempts that an EnvServer of `verifiers` plays and scores, by an interpreter of its own."""
