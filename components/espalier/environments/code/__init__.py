"""Programs that are judged by unit tests: HumanEval, MBPP, and small functions made here."""

from espalier.environments.code.config import CodeConfig
from espalier.environments.code.family import Code

__all__ = ["Code", "CodeConfig"]
