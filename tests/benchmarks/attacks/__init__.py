"""Hostile programs against every kind of sandbox: contained, not contained, or not tested."""
