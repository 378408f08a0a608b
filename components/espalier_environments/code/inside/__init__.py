"""Modules whose source text runs in sandboxes: they import nothing but the standard library.

values      plain values as JSON, and remote objects by their numbers
program     runs the judged program, and answers calls
checks      runs tests that call a program in another process
"""
