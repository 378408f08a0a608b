"""Modules whose source text runs in sandboxes: they import nothing but the standard library.

values      plain values as JSON, and references to other objects
program     runs the judged program, and answers calls
remotes     the program's objects as the tests see them
checks      runs tests that call a program in another process
"""
