"""Procedural: the questions of reasoning-gym's generators, with their parameters as levels."""

from espalier_environments.procedural.config import GeneratorConfig, ProceduralConfig
from espalier_environments.procedural.family import Procedural

__all__ = ["GeneratorConfig", "Procedural", "ProceduralConfig"]
