"""The container image that every step runs in."""

import os

from espalier import __version__

IMAGE = os.environ.get("ESPALIER_IMAGE", f"espalier:{__version__}")
"""Read when a pipeline is compiled: `espalier compile --image` sets the variable."""
