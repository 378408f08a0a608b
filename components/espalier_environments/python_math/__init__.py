"""Mathematics with a Python interpreter: stories, or problems in GSM8K's format."""

from espalier_environments.python_math.config import PythonMathConfig
from espalier_environments.python_math.family import PythonMath

__all__ = ["PythonMath", "PythonMathConfig"]
