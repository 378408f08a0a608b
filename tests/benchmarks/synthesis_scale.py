"""Questions by the million: how fast, in how much memory, and as good after kills?

    python -m tests.benchmarks.synthesis_scale --questions 1000000 --processes 2

The command of a user, `espalier draw-questions`, writes the questions twice: undisturbed, with its
resident memory measured against the rows written, and then killed with SIGKILL and started again,
as often as asked. Both artifacts must have the same digest. The knowledge artifact is made first
where none is given (GeoNames with every city above 1,000 people: the default of 15,000 yields
about 300,000 training questions); the summary says how many it yields. An undisturbed artifact of
the same count that is there already is not made again. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from espalier.artifacts import NullTracker, open_artifact, work_dir
from espalier.config import KnowledgeConfig, Profile
from espalier.knowledge import stage as ingest

from .keeping import provenance

_EVENT_BYTES = 5
_FIRST_SAMPLES = 0.1
"""Share of the rows after which memory should be flat: every signature has been met by then."""


@dataclass(frozen=True)
class Sample:
    """One look at a run."""

    seconds: float
    rows: int
    resident_mb: float
    """Of the command and its children together."""


def main() -> None:
    """Parse arguments, run undisturbed and killed, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--knowledge", type=Path, help="knowledge artifact; made where missing")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/synthesis_scale"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    knowledge = options.knowledge or made_knowledge(options.out / "knowledge")
    command = [
        sys.executable, "-c", "from espalier.cli import main; main()", "draw-questions",
        str(knowledge), "--count", str(options.questions), "--processes", str(options.processes),
    ]  # fmt: skip
    undisturbed = options.out / f"undisturbed-{options.questions}"
    kept = undisturbed.with_suffix(".json")
    if not kept.is_file():
        samples = watched([*command, "--out", str(undisturbed)], undisturbed)
        kept.write_text(json.dumps([asdict(sample) for sample in samples]), encoding="utf-8")
    samples = [Sample(**row) for row in json.loads(kept.read_bytes())]
    print_curve(samples)
    killed = options.out / f"killed-{options.questions}"
    at = kill_and_resume([*command, "--out", str(killed)], killed, options)
    digests = [open_artifact(path).content for path in (undisturbed, killed)]
    summary = {
        "benchmark": "synthesis_scale",
        **figures(samples, sum(open_artifact(undisturbed).rows.values())),
        "asked": options.questions,
        "processes": options.processes,
        "killed_at_rows": at,
        "digests_equal": digests[0] == digests[1],
        "content": digests[0],
        "origin": provenance(options.processes),
    }
    print(json.dumps(summary))
    if digests[0] != digests[1] or len(at) < options.kills:
        sys.exit(1)


def made_knowledge(directory: Path) -> Path:
    """GeoNames with its small towns."""
    if not directory.is_dir():
        print("ingesting (not timed)", flush=True)
        profile = Profile(knowledge=KnowledgeConfig(min_city_population=1000))
        ingest.run(profile, ingest.Inputs(), directory, NullTracker())
    return directory


def watched(command: list[str], out: Path, *, until_rows: int | None = None) -> list[Sample]:
    """Run the command to its end, or kill it at a number of rows; look at it now and then."""
    samples: list[Sample] = []
    started = time.perf_counter()
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        rows = rows_written(out)
        samples.append(Sample(time.perf_counter() - started, rows, resident_mb(process.pid)))
        if until_rows is not None and rows >= until_rows:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return samples
        time.sleep(0.25 if until_rows is not None else 1.0)
    if process.returncode:
        sys.exit(f"draw-questions failed: {' '.join(command)}")
    return samples


def kill_and_resume(command: list[str], out: Path, options: argparse.Namespace) -> list[int]:
    """Kill at even shares of the rows, each time start again; rows at which it was killed."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(work_dir(out), ignore_errors=True)
    at: list[int] = []
    for number in range(options.kills):
        share = (number + 1) / (options.kills + 1)
        samples = watched(command, out, until_rows=round(share * options.questions))
        if out.is_dir():
            break
        at.append(samples[-1].rows)
        print(f"killed at {at[-1]} rows, {samples[-1].seconds:.0f} s in", flush=True)
    watched(command, out)
    return at


def rows_written(out: Path) -> int:
    """Rows of all parts, by their journals."""
    journals = work_dir(out).glob("*/part-*/journal")
    return sum(
        journal.read_bytes()[_EVENT_BYTES - 1 :: _EVENT_BYTES].count(1) for journal in journals
    )


def resident_mb(pid: int) -> float:
    """Resident memory of a process and everything below it."""
    total, pending = 0.0, [pid]
    while pending:
        current = pending.pop()
        try:
            status = Path(f"/proc/{current}/status").read_text()
            children = Path(f"/proc/{current}/task/{current}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pending += map(int, children)
        total += next(
            (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0
        )
    return round(total / 1024, 1)


def print_curve(samples: list[Sample]) -> None:
    """Twenty points of the run."""
    print(f"{'seconds':>8s}{'rows':>10s}{'resident MB':>13s}")
    step = max(1, len(samples) // 20)
    for sample in samples[::step]:
        print(f"{sample.seconds:8.0f}{sample.rows:10d}{sample.resident_mb:13.0f}")


def figures(samples: list[Sample], rows: int) -> dict[str, object]:
    """Rate over the whole run, start of processes included; memory early and late."""
    seconds = samples[-1].seconds
    early = [s.resident_mb for s in samples if _FIRST_SAMPLES * rows <= s.rows <= rows / 2]
    late = [s.resident_mb for s in samples if s.rows > rows / 2]
    return {
        "rows": rows,
        "seconds": round(seconds, 1),
        "questions_per_s": round(rows / seconds, 1),
        "peak_mb": max(s.resident_mb for s in samples),
        "mean_mb_10_to_50_percent": round(sum(early) / len(early), 1) if early else None,
        "mean_mb_50_to_100_percent": round(sum(late) / len(late), 1) if late else None,
    }


if __name__ == "__main__":
    main()
