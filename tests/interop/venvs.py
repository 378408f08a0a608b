"""A venv for each package whose pins are not ours, made once and kept in build/."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PINS = {
    "openai_agents": ("openai-agents==0.24.0", "openai==3.54.0"),
    "langgraph": ("langgraph==1.2.22", "langchain-openai==1.7.3", "openai==3.54.0"),
    "anthropic": ("anthropic==2.12.0",),
    "inspect": ("inspect-ai==0.3.285", "openai==3.54.0"),
    "openenv": ("openenv==0.10.0",),
    "verifiers": ("verifiers==0.4.0",),
}


def python_of(name):
    """The interpreter of a venv with the packages of `name`, installed where it is not there."""
    pins = PINS[name]
    digest = hashlib.sha256(" ".join(pins).encode()).hexdigest()[:12]
    folder = ROOT / "build" / "interop" / f"{name}-{digest}"
    python = folder / "bin" / "python"
    if (folder / ".installed").exists():
        return python
    beside = Path(sys.executable).parent / "uv"
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        pytest.skip("uv, which makes the venvs of these tests, is not installed")
    subprocess.run([uv, "venv", "--quiet", "--clear", folder], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *pins], check=True)
    (folder / ".installed").touch()
    return python
