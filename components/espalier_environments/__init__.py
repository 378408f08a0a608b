"""Environments that come with espalier, a folder each; the core finds them by entry points."""
