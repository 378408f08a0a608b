"""Mathematics with a Python interpreter: stories, or problems in GSM8K's format."""

from espalier.environments.python_math.config import PythonMathConfig
from espalier.environments.python_math.family import PythonMath

__all__ = ["PythonMath", "PythonMathConfig"]
