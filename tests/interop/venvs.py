"""A venv for each package whose pins are not ours, made once and kept in build/."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PINS = {
    "openai_agents": ("openai-agents==0.24.0", "openai==3.54.0"),
    "langgraph": ("langgraph==1.2.22", "langchain-openai==1.7.3", "openai==3.54.0"),
    "anthropic": ("anthropic==2.12.0",),
    "inspect": ("inspect-ai==0.3.285", "openai==3.54.0"),
    "inspect_evals": (
        "inspect-ai==0.3.285", "inspect-evals==0.26.0", "sympy==1.14.0", "mpmath==1.3.0",
        "antlr4-python3-runtime==4.11.1",
    ),
    "openenv": ("openenv==0.10.0",),
    "mcp": ("mcp==2.3.0",),
    "gem": ("gem-llm==0.1.0",),
    "skyrl_gym": ("skyrl-gym==0.4.0",),
    "verifiers": ("verifiers==0.4.0",),
    "harbor": ("pydantic==2.14.3", "toml==0.10.2"),
    "trl": (),
}  # fmt: skip
ALONE = {
    # of BFCL's own package the simulated services alone, whose sources inspect_evals would clone
    "inspect_evals": ("bfcl-eval==2026.3.23",),
    # harbor asks for Python 3.12; its models of tasks and trajectories run on 3.11 as well
    "harbor": ("--python-version", "3.12", "harbor==0.26.0"),
    "trl": (
        "trl==1.16.0", "datasets==5.2.0", "accelerate==1.15.0", "dill==0.4.1",
        "multiprocess==0.70.19", "xxhash==4.1.0", "huggingface-hub==2.4.0", "psutil==7.2.2",
        "httpx==0.28.1", "fsspec==2026.9.0",
    ),
}  # fmt: skip
"""Packages that are installed without those that they ask for."""
SEES_OURS = frozenset({"trl"})
"""Venvs that take torch and transformers from the one that runs the tests."""


def python_of(name):
    """The interpreter of a venv with the packages of `name`, installed where it is not there."""
    pins, alone = PINS[name], ALONE.get(name, ())
    digest = hashlib.sha256(" ".join((*pins, *alone)).encode()).hexdigest()[:12]
    folder = ROOT / "build" / "interop" / f"{name}-{digest}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of two processes need some of them
        if not (folder / ".installed").exists():
            _make(folder, python, pins, alone)
    return python


def _make(folder, python, pins, alone):
    beside = Path(sys.executable).parent / "uv"
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        pytest.skip("uv, which makes the venvs of these tests, is not installed")
    subprocess.run([uv, "venv", "--quiet", "--clear", folder], check=True)
    install = [uv, "pip", "install", "--quiet"]
    packages = next(folder.glob("lib/python*/site-packages"))
    if pins:
        subprocess.run([*install, "--python", python, *pins], check=True)
    if alone:
        subprocess.run([*install, "--no-deps", "--target", packages, *alone], check=True)
    if folder.name.partition("-")[0] in SEES_OURS:
        ours = sysconfig.get_path("purelib")
        (packages / "ours.pth").write_text(f"{ours}\n", encoding="utf-8")
    (folder / ".installed").touch()
