"""Attempts to cheat verifiers. A module for each family has its own in `HACKS`."""
