"""The processes that `tests.benchmarks.house` starts: keys of a profile, a training's modules.

    python tests/benchmarks/house_processes.py keys|process|trace TREE PACKAGE[,PACKAGE]

Imports the library of TREE, which PYTHONPATH names, and nothing of the benchmarks, so that earlier
commits are counted too. The last line is one JSON object.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

LOOP_STEP = "RlLoop._step"
STAGES = (
    "ingest", "synthesize", "validate", "prepare_policy", "continue_pretraining", "warm_start",
    "filter_curriculum",
)  # fmt: skip
"""Those before `train`."""
LANDMARKS = (
    ("curriculum", {"draw"}),
    ("environment", {"reset", "step", "score"}),
    ("algorithms", {"advantages_BT", "loss"}),
)
"""Part of a module's name -> functions at whose calls the stack is looked at."""


def main() -> None:
    """Print what is asked; `step` is what `trace` starts for each stage."""
    asked, folder, packages = sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(",")
    if asked == "keys":
        found = keys(folder)
    elif asked == "process":
        found = {"loaded": loaded_by_import()}
    elif asked == "step":
        found = traced_step(folder, packages, sys.argv[4], sys.argv[5])
    else:
        found = trace(folder, packages)
    print(json.dumps(found))


def keys(folder: Path) -> dict[str, int]:
    """How many keys a profile has, and how many of them shipped profiles set."""
    from espalier.config import Profile, family_class, family_names

    known = set(_key_paths(Profile, ()))
    known.discard(("environment",))
    for family in family_names():
        known |= set(_key_paths(family_class(family).config, ("environment",)))
    shipped: set[tuple[str, ...]] = set()
    for path in sorted((folder / "pipelines" / "profiles").glob("*.toml")):
        shipped |= set(_set_paths(tomllib.loads(path.read_text(encoding="utf-8")), ()))
    used = sum(any(_names(key, given) for given in shipped) for key in known)
    return {"keys": len(known), "shipped_keys": used}


def _key_paths(model: Any, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        sections = list(_sections(field.annotation))
        if not sections:
            yield (*above, name)
        for is_table, section in sections:
            yield from _key_paths(section, (*above, name, *(["*"] if is_table else [])))


def _sections(annotation: Any) -> Iterator[tuple[bool, Any]]:
    """Sections that a key may hold, and whether they stand below names of the user's."""
    from pydantic import BaseModel

    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and origin is None and issubclass(annotation, BaseModel):
        yield False, annotation
    elif origin is Annotated:
        yield from _sections(arguments[0])
    elif origin in (Union, UnionType, tuple, list):
        for part in arguments:
            yield from _sections(part)
    elif origin is dict:
        yield from ((True, section) for _, section in _sections(arguments[1]))


def _set_paths(content: Any, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield above
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _set_paths(value, (*above, name))
    elif isinstance(content, list):
        for value in content:
            yield from _set_paths(value, above)


def _names(key: Sequence[str], given: Sequence[str]) -> bool:
    return len(key) == len(given) and all(
        part in ("*", other) for part, other in zip(key, given, strict=True)
    )


def loaded_by_import() -> list[str]:
    """Modules that are there once the training stage and the default family are imported."""
    importlib.import_module("espalier.stages.train")
    from espalier.config import Profile, family_class

    family_class(Profile().environment.name)
    return sorted(sys.modules)


def trace(folder: Path, packages: Sequence[str]) -> dict[str, Any]:
    """Run the profile smoke up to two steps of training, each stage in a process of its own."""
    text = (folder / "pipelines" / "profiles" / "smoke.toml").read_text(encoding="utf-8")
    profile, run = Path("smoke.toml"), Path("run")
    profile.write_text(re.sub(r"(\[training\]\n)steps = \d+", r"\1steps = 2", text))
    for stage in (*STAGES, "train"):
        command = [sys.executable, __file__, "step", str(folder), ",".join(packages), stage]
        ran = subprocess.run(
            [*command, str(profile)], stdout=subprocess.PIPE, text=True, check=False
        )
        if ran.returncode:
            sys.exit(f"the stage {stage} ended with {ran.returncode}; its lines are above")
        print(f"{stage}: done in {run}", file=sys.stderr)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def traced_step(folder: Path, packages: Sequence[str], stage: str, profile: str) -> dict[str, Any]:
    """Run one stage as a pod does; of `train`, the modules between a task and a gradient."""
    stacks = _Stacks(folder, packages)
    if stage == "train":
        threading.setprofile(stacks)
        sys.setprofile(stacks)
    from espalier.cli import main as command

    sys.argv = [
        "espalier",
        "step",
        stage,
        "--profile",
        profile,
        "--run",
        str(Path("run").resolve()),
    ]
    try:
        command()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if stage != "train":
        return {}
    if not stacks.steps:
        sys.exit(f"{LOOP_STEP} was not called: say in {__file__} what the loop's step is named")
    files = sorted(stacks.modules)
    return {"files_to_gradient": len(files), "traced_files": files, "loaded": sorted(sys.modules)}


class _Stacks:
    """A profile function that collects the modules on the stacks at the landmarks."""

    def __init__(self, folder: Path, packages: Sequence[str]) -> None:
        self._roots = [(os.path.join(folder, "components", ""), p) for p in packages]
        self._known: dict[CodeType, str] = {}
        self._is_landmark: dict[CodeType, bool] = {}
        self.modules: set[str] = set()
        self.steps = 0
        self._is_stepping = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event in ("call", "return") and code.co_qualname == LOOP_STEP:
            self._is_stepping = event == "call"
            self.steps += event == "call"
        elif event == "call" and self._is_stepping and self._looks_at(code):
            above: FrameType | None = frame
            while above is not None:
                if module := self._module(above.f_code):
                    self.modules.add(module)
                if above.f_code.co_qualname == LOOP_STEP:
                    break
                above = above.f_back

    def _looks_at(self, code: CodeType) -> bool:
        if code not in self._is_landmark:
            module = self._module(code)
            is_gradient = code.co_name == "backward" and code.co_filename.endswith("_tensor.py")
            self._is_landmark[code] = is_gradient or any(
                part in module and code.co_name in names for part, names in LANDMARKS
            )
        return self._is_landmark[code]

    def _module(self, code: CodeType) -> str:
        """Dotted name of a module of the packages; else empty."""
        if code not in self._known:
            found = ""
            for root, package in self._roots:
                path = code.co_filename
                if path.startswith(os.path.join(root, package)):
                    found = path.removeprefix(root).removesuffix(".py").replace(os.sep, ".")
            self._known[code] = found
        return self._known[code]


if __name__ == "__main__":
    main()
