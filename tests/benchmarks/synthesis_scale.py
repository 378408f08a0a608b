"""Questions by the million: how fast, in how much memory, and as good after kills?

    python -m tests.benchmarks.synthesis_scale --questions 1000000

The command of a user, `espalier data draw-questions --split all`, writes the questions twice:
undisturbed, with its resident memory measured against the rows written, and then killed with
SIGKILL and started again, as often as asked. Both artifacts must have the same digest, hold no
question twice and none of another split's entities, and SQL over the triples must agree with an
even sample of them. The knowledge artifact is made first where none is given: GeoNames with every
city above 1,000 people, which yields more than a million questions (the default of 15,000 people:
about 300,000 of the training split). What is finished is kept, and a benchmark that was ended goes
on where it was. The last line is one JSON object.
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

from espalier.config import KnowledgeConfig, Profile
from espalier.records import NullTracker, open_artifact, work_dir
from espalier.stages import ingest

from .keeping import provenance
from .question_rows import figures_of, looked_through

_EVENT_BYTES = 5
_FIRST_SAMPLES = 0.1
"""Share of the rows after which memory should be flat: every signature has been met by then."""


@dataclass(frozen=True)
class Sample:
    """One look at a run."""

    seconds: float
    """Of all attempts, where the benchmark was ended and started again."""
    rows: int
    resident_mb: float
    """Of the command."""


def main() -> None:
    """Run undisturbed and killed, compare, print."""
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    knowledge = options.knowledge or made_knowledge(options.out / "knowledge")
    command = [
        sys.executable, "-c", "from espalier.cli import main; main()", "data",
        "draw-questions",
        str(knowledge), "--count", str(options.questions), "--split", "all",
    ]  # fmt: skip
    undisturbed = options.out / f"undisturbed-{options.questions}"
    log = undisturbed.with_suffix(".samples.jsonl")
    if not undisturbed.is_dir():
        watched([*command, "--out", str(undisturbed)], undisturbed, log)
    print_curve(samples := samples_of(log))
    found = figures_of(looked_through(undisturbed, knowledge, options.sample), knowledge)
    print(json.dumps(found), flush=True)
    killed = options.out / f"killed-{options.questions}"
    at = kill_and_resume([*command, "--out", str(killed)], killed, options)
    manifests = [open_artifact(path) for path in (undisturbed, killed)]
    digests = [manifest.content for manifest in manifests]
    rows = sum(manifests[0].rows.values())
    summary = {
        "benchmark": "synthesis_scale",
        **figures(samples, rows),
        **found,
        "asked": options.questions,
        "killed_at_rows": at,
        "digests_equal": digests[0] == digests[1],
        "content": digests[0],
        "origin": provenance(1),
    }
    print(json.dumps(summary))
    is_sound = found["distinct"] == rows and not found["of_another_split"] + found["exceptions"]
    if digests[0] != digests[1] or len(at) < options.kills or not is_sound:
        sys.exit(1)


def arguments() -> argparse.Namespace:
    """What to run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--sample", type=int, default=10_000, help="questions that SQL judges")
    parser.add_argument("--knowledge", type=Path, help="knowledge artifact; made where missing")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/synthesis_scale"))
    return parser.parse_args()


def made_knowledge(directory: Path) -> Path:
    """GeoNames with its small towns."""
    if not directory.is_dir():
        print("ingesting (not timed)", flush=True)
        profile = Profile(knowledge=KnowledgeConfig(min_city_population=1000))
        ingest.run(profile, {}, directory, NullTracker())
    return directory


def watched(command: list[str], out: Path, log: Path, *, until_rows: int | None = None) -> Sample:
    """Run the command to its end, or kill it at a number of rows; look at it now and then.

    Every look is a line of `log`; the last one is returned.
    """
    earlier = samples_of(log)
    sample = earlier[-1] if earlier else Sample(0.0, 0, 0.0)
    started = time.perf_counter() - sample.seconds
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    with log.open("a", encoding="utf-8", buffering=1) as lines:
        while process.poll() is None:
            seconds = time.perf_counter() - started
            sample = Sample(seconds, rows_written(out), resident_mb(process.pid))
            lines.write(json.dumps(asdict(sample)) + "\n")
            if until_rows is not None and sample.rows >= until_rows:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return sample
            time.sleep(0.25 if until_rows is not None else 1.0)
    if process.returncode:
        sys.exit(f"draw-questions failed: {' '.join(command)}")
    return sample


def samples_of(log: Path) -> list[Sample]:
    """What `watched` has seen so far."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    return [Sample(**json.loads(line)) for line in lines]


def kill_and_resume(command: list[str], out: Path, options: argparse.Namespace) -> list[int]:
    """Kill at even shares of the rows, each time start again; rows at which it was killed."""
    log, kept = out.with_suffix(".samples.jsonl"), out.with_suffix(".kills.json")
    if not kept.is_file():
        for left in (out, work_dir(out)):
            shutil.rmtree(left, ignore_errors=True)
        log.unlink(missing_ok=True)
        kept.write_text("[]")
    at: list[int] = json.loads(kept.read_bytes())
    while len(at) < options.kills and not out.is_dir():
        share = (len(at) + 1) / (options.kills + 1)
        sample = watched(command, out, log, until_rows=round(share * options.questions))
        if out.is_dir():
            break
        at.append(sample.rows)
        kept.write_text(json.dumps(at))
        print(f"killed at {at[-1]} rows, {sample.seconds:.0f} s in", flush=True)
    if not out.is_dir():
        watched(command, out, log)
    return at


def rows_written(out: Path) -> int:
    """Rows of all parts, by their journals."""
    journals = work_dir(out).glob("*/*/journal")
    return sum(
        journal.read_bytes()[_EVENT_BYTES - 1 :: _EVENT_BYTES].count(1) for journal in journals
    )


def resident_mb(pid: int) -> float:
    """Resident memory of a process; 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    found = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return round(next(found, 0) / 1024, 1)


def print_curve(samples: list[Sample]) -> None:
    """Twenty points of the run."""
    print(f"{'seconds':>8s}{'rows':>10s}{'resident MB':>13s}")
    step = max(1, len(samples) // 20)
    for sample in samples[::step]:
        print(f"{sample.seconds:8.0f}{sample.rows:10d}{sample.resident_mb:13.0f}")


def figures(samples: list[Sample], rows: int) -> dict[str, object]:
    """Rate over the whole run, start included; memory early and late."""
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
