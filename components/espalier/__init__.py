"""espalier: from a knowledge source and a base policy to an evaluated, promotable agent."""

__version__ = "0.2.0"
