"""Rollout engines side by side, on the same scripted multi-turn episodes."""
