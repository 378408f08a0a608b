"""Comparisons with the packages of others, each run in a process of its own."""
