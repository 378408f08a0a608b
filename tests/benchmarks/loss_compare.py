"""Does a change leave training as it was? Two commits train; every loss is compared exactly.

Each commit runs the whole chain of tests/benchmarks/loss_compare.toml (seeded, one thread, CPU, 20
steps of warm start and 20 of GRPO) from a git worktree of its own, in a process of its own, through
its own `espalier run`. Then the stored histories are compared value by value: equal means the same
64-bit float, and a missing value equals only a missing value. Columns of measured times may differ.

Without --head, the other side is the working tree as it stands, with uncommitted changes. Equal
trees run twice, which shows whether a commit repeats itself. A finished side is kept under --out by
the digest of its tree and settings, so that a BASE runs once; a killed side resumes.

Exit code: 0 identical, 1 not identical, 2 a side did not run. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

EXAMPLES = """examples:
  make loss-compare BASE=main
  python -m tests.benchmarks.loss_compare --base HEAD~3
  python -m tests.benchmarks.loss_compare --base v1 --head v2 --set training.algorithm.preset=dapo
  python -m tests.benchmarks.loss_compare --base main --set-head reward.format_weight=0.1
"""
PROFILE = Path(__file__).with_suffix(".toml")
RECORDED = {"base_policy": "prepare_policy", "warm_policy": "warm_start", "trained_policy": "train"}
"""Artifact folder with a history -> the stage that writes it, in the order of the chain."""
REQUIRED = ("warm_policy", "trained_policy")
MEASURED_TIME = re.compile(r"(^|_)(s|ms|seconds|time)$|_per_s$")
"""Names of the columns that may differ between two runs of one commit."""
MOVED = (("training.device", "hardware.device"), ("training.reward", "reward"))
"""Keys and sections of a profile that have another name in some commits. A commit that refuses one
is asked with the other; add a pair here when a key of loss_compare.toml moves."""
REFUSED = re.compile(r"^\s*([\w.]+): no such key", re.MULTILINE)
"""How `espalier run` names a key that the commit's profiles do not have."""
RUN_CLI = """
import sys
from pathlib import Path
import espalier
tree = Path(sys.argv.pop(1))
if not Path(espalier.__file__).resolve().is_relative_to(tree):
    sys.exit(f"espalier is imported from {espalier.__file__} and not from {tree}")
from espalier.cli import main
main()
"""


class SideFailed(RuntimeError):
    """A side could not be run; the message says which, why, and where its log is."""


class Difference(NamedTuple):
    """The first value of a history that is not the same on both sides, each side's as `repr`."""

    step: float
    column: str
    base: str
    head: str


@dataclass(frozen=True)
class Comparison:
    """Two histories of one stage.

    Attributes:
        steps: rows of the base's history.
        with_gradient: rows whose grad_norm is above 0: equality of the others says little.
        differences: the first differing row of each column that differs, the earliest row first.
        one_sided: columns that only one side has; they are listed and decide nothing.
    """

    steps: int
    with_gradient: int
    differences: tuple[Difference, ...]
    one_sided: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs but measured times."""
        return not self.differences


@dataclass(frozen=True)
class Side:
    """One commit, and the folder where its run is kept."""

    label: str
    commit: str
    settings: dict[str, str]
    folder: Path

    @property
    def run_dir(self) -> Path:
        """The run folder of its chain."""
        return self.folder / "run"

    @property
    def is_finished(self) -> bool:
        """Whether an earlier call ran it to its end."""
        return (self.folder / "finished.json").is_file()


def main() -> int:
    """Run what is missing, compare, and print."""
    options = _options()
    try:
        sides = [
            _side("base", options.base, options, options.set_base),
            _side("head", options.head, options, options.set_head),
        ]
        if sides[0].folder == sides[1].folder:
            sides[1] = replace(
                sides[1], folder=sides[1].folder.with_name(f"{sides[1].folder.name}-again")
            )
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(_finish, sides))
        compared = _compared(*(side.run_dir for side in sides), ignore=options.ignore)
    except SideFailed as error:
        print(f"error: {error}", file=sys.stderr)
        print(json.dumps({"identical": None, "error": str(error)}))
        return 2
    _print_table(compared)
    identical = all(comparison.is_equal for comparison in compared.values())
    verdict = {
        "identical": identical,
        "sides": {side.label: _provenance(side) for side in sides},
        "same_weights": _same_weights(*(side.run_dir for side in sides)),
        "stages": {stage: asdict(comparison) for stage, comparison in compared.items()},
    }
    print(json.dumps(verdict))
    return 0 if identical else 1


def compare(base: pa.Table, head: pa.Table, ignore: Collection[str] = ()) -> Comparison:
    """Compare two histories value by value, row by row.

    Args:
        base: one row an optimizer step, with the columns step, loss and grad_norm at least.
        head: the same of the other side.
        ignore: columns that may differ, besides those named as measured times.
    """
    base_rows, head_rows = base.to_pylist(), head.to_pylist()
    shared = [name for name in base.column_names if name in head.column_names]
    missing = {"step", "loss", "grad_norm"}.difference(shared)
    if missing:
        raise SideFailed(f"a history has no column {', '.join(sorted(missing))}")
    found = [
        difference
        for name in shared
        if name not in ignore and not MEASURED_TIME.search(name)
        for difference in _first_difference(name, base_rows, head_rows)
    ]
    if len(base_rows) != len(head_rows):
        row = min(len(base_rows), len(head_rows))
        found.append(Difference(row + 1, "rows", repr(len(base_rows)), repr(len(head_rows))))
    return Comparison(
        steps=len(base_rows),
        with_gradient=sum((row["grad_norm"] or 0) > 0 for row in base_rows),
        differences=tuple(sorted(found, key=lambda difference: difference.step)),
        one_sided=tuple(sorted(set(base.column_names) ^ set(head.column_names))),
    )


def _first_difference(
    column: str, base: Sequence[Mapping[str, Any]], head: Sequence[Mapping[str, Any]]
) -> Iterator[Difference]:
    for base_row, head_row in zip(base, head, strict=False):
        values = _exact(base_row[column]), _exact(head_row[column])
        if values[0] != values[1]:
            yield Difference(base_row["step"], column, *values)
            return


def _exact(value: object) -> str:
    """A value as text: NaN equals no NaN, and repr tells every float from every other."""
    # a column of whole numbers may be stored as integers on one side
    return repr(float(value)) if isinstance(value, int) else repr(value)


def flat_settings(profile: Path, overrides: Sequence[str]) -> dict[str, str]:
    """A profile's values by dotted key, as `--set` takes them, with `overrides` put over them."""
    settings = dict(_leaves(tomllib.loads(profile.read_text()), ""))
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator:
            raise SideFailed(f"--set {override}: write it as SECTION.KEY=VALUE")
        settings[key] = value
    return settings


def _leaves(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, _toml(value)


def _toml(value: object) -> str:
    """A value as TOML writes it; JSON's spelling, but for inline tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(inner) for inner in value) + "]"
    return json.dumps(value)


def respelled(settings: Mapping[str, str], refused: Collection[str], commit: str) -> dict[str, str]:
    """`settings` with each refused key under its other name.

    Args:
        settings: value by dotted key.
        refused: keys or sections that the commit does not have.
        commit: for the message.

    Raises:
        SideFailed: a refused key has no other name in MOVED.
    """
    others = {old: new for pair in MOVED for old, new in (pair, pair[::-1])}
    spelled: dict[str, str] = {}
    for key, value in settings.items():
        if not any(key == name or key.startswith(name + ".") for name in refused):
            spelled[key] = value
            continue
        name = next((n for n in others if key == n or key.startswith(n + ".")), None)
        if name is None:
            raise SideFailed(
                f"{commit}: its profiles have no key {key}, and no other name of it is known: add "
                "the pair to MOVED in tests/benchmarks/loss_compare.py"
            )
        spelled[others[name] + key.removeprefix(name)] = value
    return spelled


def _side(
    label: str, revision: str | None, options: argparse.Namespace, overrides: Sequence[str]
) -> Side:
    commit = _working_tree_commit() if revision is None else _git("rev-parse", f"{revision}^0")
    settings = flat_settings(options.profile, (*options.set, *overrides))
    asked = {
        "tree": _git("rev-parse", f"{commit}^{{tree}}"),
        "settings": settings,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in ("torch", "transformers", "numpy")},
        "machine": platform.machine(),
    }
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return Side(label, commit, settings, (options.out / digest[:16]).resolve())


def _working_tree_commit() -> str:
    """A commit of the files as they are, on no branch; HEAD itself where nothing was changed."""
    with tempfile.TemporaryDirectory() as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch, "index"))}
        _git("read-tree", "HEAD", **index)
        _git("add", "--all", **index)
        tree = _git("write-tree", **index)
    if tree == _git("rev-parse", "HEAD^{tree}"):
        return _git("rev-parse", "HEAD")
    return _git("commit-tree", tree, "-p", "HEAD", "-m", "loss-compare: uncommitted changes")


def _finish(side: Side) -> None:
    """Run the side's chain, unless an earlier call has."""
    if side.is_finished:
        _say(f"{side.label} {side.commit[:12]}: kept {side.folder}")
        return
    side.folder.mkdir(parents=True, exist_ok=True)
    _say(f"{side.label} {side.commit[:12]}: runs, log in {side.folder / 'log.txt'}")
    started = time.monotonic()
    with _worktree(side) as tree:
        spelled = _run_chain(side, tree)
    seconds = round(time.monotonic() - started, 1)
    record = {"commit": side.commit, "seconds": seconds, "settings": spelled}
    (side.folder / "finished.json").write_text(json.dumps(record, indent=1) + "\n")
    _say(f"{side.label} {side.commit[:12]}: finished in {seconds:.0f} s")


def _run_chain(side: Side, tree: Path) -> dict[str, str]:
    """Run `espalier run`, with other names for the keys that it refuses; return what it took."""
    profile = side.folder / "profile.toml"
    profile.write_text('name = "loss-compare"\n')
    settings = side.settings
    tried: list[set[str]] = []
    while True:
        pairs = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        said = _cli(
            side, tree, ["run", "--profile", str(profile), "--out", str(side.run_dir), *pairs]
        )
        if said is None:
            return settings
        refused = set(REFUSED.findall(said))
        if not refused or refused in tried:
            raise SideFailed(f"{side.label} {side.commit[:12]} failed: {_last_lines(said)}")
        tried.append(refused)
        settings = respelled(settings, refused, f"{side.label} {side.commit[:12]}")


def _cli(side: Side, tree: Path, arguments: Sequence[str]) -> str | None:
    """Run the tree's own command line; return what it wrote where it failed."""
    environment = {
        name: value
        for name, value in os.environ.items()
        # a server would mix the runs of both sides, and a chain inside a chain takes over its run
        if not name.startswith("MLFLOW_")
    } | {
        "PYTHONPATH": str(tree / "components"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
    }
    log = side.folder / "log.txt"
    with log.open("w") as output:
        ended = subprocess.run(
            [sys.executable, "-c", RUN_CLI, str(tree), *arguments],
            cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    return None if ended.returncode == 0 else log.read_text()


@contextmanager
def _worktree(side: Side) -> Iterator[Path]:
    """The side's files in a git worktree that is removed afterwards."""
    tree = side.folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)  # of a killed call; --force takes its registration over
    _git("worktree", "add", "--quiet", "--force", "--detach", str(tree), side.commit)
    try:
        yield tree
    finally:
        _git("worktree", "remove", "--force", str(tree))


def _compared(base: Path, head: Path, ignore: Collection[str]) -> dict[str, Comparison]:
    compared = {}
    for folder, stage in RECORDED.items():
        paths = [run_dir / folder / "history.parquet" for run_dir in (base, head)]
        if all(path.is_file() for path in paths):
            compared[stage] = compare(*(pq.read_table(path) for path in paths), ignore=ignore)
        elif folder in REQUIRED:
            missing = next(path for path in paths if not path.is_file())
            raise SideFailed(f"{missing} is not there: the run has no history of {stage}")
    return compared


def _same_weights(base: Path, head: Path) -> dict[str, bool | None]:
    """Whether both sides wrote the same bytes as weights, by stage.

    None where that shows nothing: a stage keeps its best weights, which may be those it began with.
    """
    same: dict[str, bool | None] = {}
    before = ""
    for folder, stage in RECORDED.items():
        ours, theirs = _weights_digest(base / folder), _weights_digest(head / folder)
        same[stage] = None if ours == theirs == before else ours == theirs
        before = ours
    return same


def _weights_digest(artifact: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(artifact.rglob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _print_table(compared: Mapping[str, Comparison]) -> None:
    rows = [("stage", "steps", "with gradient", "equal", "first differing step", "base", "head")]
    for stage, comparison in compared.items():
        counts = (str(comparison.steps), str(comparison.with_gradient))
        if comparison.is_equal:
            rows.append((stage, *counts, "yes", "-", "-", "-"))
        for difference in comparison.differences:
            where = f"{difference.step:g} {difference.column}"
            rows.append((stage, *counts, "no", where, difference.base, difference.head))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    for stage, comparison in compared.items():
        if comparison.one_sided:
            print(f"{stage}: columns of one side alone: {', '.join(comparison.one_sided)}")


def _provenance(side: Side) -> dict[str, object]:
    record = json.loads((side.folder / "finished.json").read_bytes())
    return {"commit": side.commit, "seconds": record["seconds"], "folder": str(side.folder)}


def _last_lines(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-5:]) or "it wrote nothing"


def _git(*arguments: str, **environment: str) -> str:
    ended = subprocess.run(
        ["git", *arguments],
        capture_output=True, text=True, check=False, env=os.environ | environment,
    )  # fmt: skip
    if ended.returncode:
        raise SideFailed(f"git {' '.join(arguments)}: {ended.stderr.strip()}")
    return ended.stdout.strip()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.loss_compare",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base", required=True, metavar="COMMIT", help="what it is compared with")
    parser.add_argument("--head", metavar="COMMIT", help="default: the working tree as it stands")
    parser.add_argument(
        "--profile", type=Path, default=PROFILE, metavar="TOML", help=f"default: {PROFILE.name}"
    )
    for option, who in (("--set", "both sides"), ("--set-base", "base"), ("--set-head", "head")):
        parser.add_argument(
            option, action="append", default=[], metavar="KEY=VALUE", help=f"for {who}; repeatable"
        )
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="COLUMN", help="may differ; repeatable"
    )
    parser.add_argument(
        "--jobs", type=int, choices=(1, 2), default=2, help="sides at once (default 2)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/loss-compare"), help="default: runs/loss-compare"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
