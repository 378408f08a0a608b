"""Agents and environments of other libraries, and trajectories in their formats."""
