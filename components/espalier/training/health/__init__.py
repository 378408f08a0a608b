"""Detectors of failing runs: each reads the figures that a step writes anyway.

history row of a step, attempts -> detectors -> notices (`espalier.records.notices`)

A detector compares a run with its own first steps. Its state follows from the history alone, so a
resumed run, which replays the history of its checkpoint, notices what an unbroken one does.
"""

from espalier.training.health.monitor import HealthMonitor
from espalier.training.health.responses import Responder
from espalier.training.health.rules import DETECTORS, new_detectors

__all__ = ["DETECTORS", "HealthMonitor", "Responder", "new_detectors"]
