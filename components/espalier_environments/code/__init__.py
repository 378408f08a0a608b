"""Programs judged by unit tests: HumanEval, MBPP, and small generated functions."""

from espalier_environments.code.config import CodeConfig
from espalier_environments.code.family import Code

__all__ = ["Code", "CodeConfig"]
