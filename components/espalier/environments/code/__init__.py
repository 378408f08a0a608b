"""Programs judged by unit tests: HumanEval, MBPP, and small generated functions."""

from espalier.environments.code.config import CodeConfig
from espalier.environments.code.family import Code

__all__ = ["Code", "CodeConfig"]
