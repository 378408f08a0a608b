"""Procedural: the questions of reasoning-gym's generators, with their parameters as levels."""

from espalier.environments.procedural.config import GeneratorConfig, ProceduralConfig
from espalier.environments.procedural.family import Procedural

__all__ = ["GeneratorConfig", "Procedural", "ProceduralConfig"]
