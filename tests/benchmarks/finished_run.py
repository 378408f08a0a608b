"""The finished run that a benchmark measures on: its folder and its profile."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from espalier.config import Profile


def add_run_options(parser: argparse.ArgumentParser, run: str = "runs/demo") -> None:
    """Add --run, whose default is `run`, and --profile."""
    parser.add_argument("--run", type=Path, default=Path(run), help="folder of a finished run")
    parser.add_argument("--profile", type=Path, help="of the run, where it has no profile.json")


def profile_of_run(options: argparse.Namespace) -> Profile:
    """The profile that is named, else the one that the run has saved.

    Raises:
        SystemExit: none is named, and the run has none.
    """
    # imported once the caller has set how torch is to start
    from espalier.config import Profile, load_profile

    if options.profile is not None:
        return load_profile(options.profile)
    saved: Path = options.run / "profile.json"
    if not saved.is_file():
        sys.exit(
            f"{options.run}: has no profile.json; name a finished run with --run (`make demo` "
            "makes one), or this one's profile with --profile"
        )
    return Profile.model_validate_json(saved.read_text(encoding="utf-8"))
