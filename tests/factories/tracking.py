"""Trackers that tests read."""

from espalier.records import NullTracker


class Notes(NullTracker):
    """Keeps the notes of a stage."""

    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)
