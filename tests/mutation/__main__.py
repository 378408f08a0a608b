"""`python -m tests.mutation --seed 0 --count 100`: a sample of mutants against the quick tests.

The sample is drawn evenly over the packages and is the same for the same seed and source. Each
mutant is written into a temporary copy of the library and tried with the quick tests (those without
the mark `slow`) of its package. Outcomes are kept in --results as they come; the same command goes
on where it was stopped, unless the library or the tests have changed since. Prints one line a
mutant, the survivors' changes, and one line of JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.mutation.mutants import Mutant, changed_lines, find_mutants, mutate
from tests.mutation.trials import COMPONENTS, ROOT, Copy, Outcome, test_files

TESTS: dict[str, tuple[str, ...]] = {
    "algorithms": ("tests/unit/algorithms",),
    "dialects": ("tests/unit/dialects",),
    "environments": (
        "tests/unit/environments",
        "tests/unit/python_math",
        "tests/unit/knowledge/test_problems.py",
        "tests/unit/rollout/test_episode.py",
    ),
    "training": ("tests/unit/training",),
    "storage": ("tests/unit/storage", "tests/unit/records"),
    "registry": ("tests/unit/registry", "tests/unit/orchestration/test_promotion.py"),
    "serving": ("tests/unit/serving",),
}
"""Package of the library -> its unit tests. A new package is one more line."""


def main() -> None:
    """Draw, try and report."""
    options = _options()
    packages = options.package or list(TESTS)
    mutants = [
        mutant
        for package, count in zip(packages, _shares(options.count, len(packages)), strict=True)
        for mutant in draw(package, seed=options.seed, count=count)
    ]
    if options.mutant:
        mutants = [m for p in packages for m in all_mutants(p) if m.name in options.mutant]
    ledger = Ledger(options.results)
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        bench = Bench(Copy(Path(folder)), ledger, limit_s=options.limit_s)
        for number, mutant in enumerate(mutants, 1):
            record = bench.record(mutant)
            print(f"{number}/{len(mutants)} {record['verdict']:8} {mutant.name}", flush=True)
            if record["verdict"] != "killed":
                print(record["change"], flush=True)
    records = [ledger.done[mutant.name] for mutant in mutants]
    print(json.dumps(_summary(records, seed=options.seed)))


class Bench:
    """Tries mutants that the ledger does not know yet."""

    def __init__(self, copy: Copy, ledger: Ledger, *, limit_s: float | None = None) -> None:
        """`limit_s` is what the tests of a mutant may take; None measures each package first."""
        self._copy = copy
        self._ledger = ledger
        self._given_limit_s = limit_s
        self._limits_s: dict[str, float] = {}

    def record(self, mutant: Mutant) -> dict[str, Any]:
        """What came of the mutant, now or in a run before."""
        if mutant.name not in self._ledger.done:
            package = package_of(mutant)
            tests = test_files(TESTS[package])
            limit_s = self._limit_s(package, tests)
            outcome = self._copy.try_mutant(mutant, tests, limit_s=limit_s)
            self._ledger.add(mutant, outcome)
        return self._ledger.done[mutant.name]

    def _limit_s(self, package: str, tests: Sequence[Path]) -> float:
        """Four times what the tests take on the library as it is, which they must accept."""
        if self._given_limit_s is not None:
            return self._given_limit_s
        if package not in self._limits_s:
            whole = self._copy.run(tests, limit_s=1800)
            if whole.verdict != "survived":
                sys.exit(f"the tests of {package} fail on the library as it is: {whole.by}")
            print(f"{package}: its tests take {whole.seconds:.0f} s", flush=True)
            self._limits_s[package] = 30 + 4 * whole.seconds
        return self._limits_s[package]


@dataclass(frozen=True)
class Ledger:
    """Outcomes in a file of JSON lines, each with the commit and the state of the sources."""

    path: Path

    @cached_property
    def state(self) -> dict[str, str]:
        """The commit, and a digest of the library and the tests as they are on disk."""
        git = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
        digest = hashlib.sha256()
        for folder in (COMPONENTS, ROOT / "tests"):
            for path in sorted(folder.rglob("*.py")):
                digest.update(
                    path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes()
                )
        return {"commit": commit, "sources": digest.hexdigest()[:16]}

    @cached_property
    def done(self) -> dict[str, dict[str, Any]]:
        """Mutants of these sources that were tried."""
        if not self.path.is_file():
            return {}
        records = [json.loads(line) for line in self.path.read_text().splitlines()]
        return {r["mutant"]: r for r in records if r["sources"] == self.state["sources"]}

    def add(self, mutant: Mutant, outcome: Outcome) -> None:
        """Keep an outcome."""
        source = (COMPONENTS / mutant.path).read_text(encoding="utf-8")
        change = changed_lines(source, mutate(source, mutant))
        record = {"mutant": mutant.name, **asdict(outcome), "change": change, **self.state}
        self.done[mutant.name] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def all_mutants(package: str) -> list[Mutant]:
    """Every mutant of a package of the library, by file and place."""
    folder = COMPONENTS / "espalier" / package
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: the library has no such package")
    return [
        mutant
        for path in sorted(folder.rglob("*.py"))
        for mutant in find_mutants(
            path.relative_to(COMPONENTS).as_posix(), path.read_text(encoding="utf-8")
        )
    ]


def draw(package: str, *, seed: int, count: int) -> list[Mutant]:
    """`count` of a package's mutants; which ones depends on no other package."""
    mutants = all_mutants(package)
    return random.Random(f"{seed} {package}").sample(mutants, min(count, len(mutants)))


def package_of(mutant: Mutant) -> str:
    """The package of the library that the mutated file is in."""
    return Path(mutant.path).parts[1]


def _shares(count: int, parts: int) -> list[int]:
    return [count // parts + (part < count % parts) for part in range(parts)]


def _summary(records: Sequence[dict[str, Any]], *, seed: int) -> dict[str, Any]:
    packages: dict[str, Counter[str]] = {}
    for record in records:
        package = record["mutant"].split("/")[1]
        packages.setdefault(package, Counter())[record["verdict"]] += 1
    verdicts = Counter(record["verdict"] for record in records)
    return {
        "seed": seed,
        "mutants": len(records),
        **{verdict: verdicts[verdict] for verdict in ("killed", "survived", "timeout")},
        "packages": packages,
        "survivors": [r["mutant"] for r in records if r["verdict"] == "survived"],
        "commit": sorted({record["commit"] for record in records}),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100, help="mutants over all packages")
    parser.add_argument("--package", nargs="+", choices=TESTS, help="default: all of them")
    parser.add_argument("--mutant", nargs="+", help="these mutants by name, instead of a sample")
    parser.add_argument(
        "--limit-s",
        type=float,
        metavar="S",
        help="what the tests of a mutant may take, where nobody is to measure it first",
    )
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "mutation.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    main()
