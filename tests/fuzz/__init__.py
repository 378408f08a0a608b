"""Seeded fuzzers of everything that reads what others send; see `__main__`."""
