"""Is an artifact whole whose publishers are killed? Real processes, a real MinIO.

    python -m tests.benchmarks.publishing_kills --kills 200 --seed 0

Rounds: two processes publish two artifacts to one prefix at once, each killed with SIGKILL at a
moment drawn from the seed, while a third process fetches again and again. Then the prefix is looked
at, another process publishes there undisturbed, and what it published is fetched and compared. Ten
rounds share a prefix, so most of them replace something. In the end garbage is collected as if a
month had passed: every artifact has to be whole after it, and nothing else be left.

Rounds that are done are kept in --out, and the same command goes on after them. The last line is
one JSON object; exit code 1 where something was not whole.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from espalier.records import ArtifactError, Manifest, Provenance, StorageError, publishing
from espalier.storage import open_location
from espalier.storage.garbage import DEFAULT_AGE, Collector
from espalier.storage.layout import COLLECTING, object_name
from espalier.storage.objects import Clock, listed_below
from espalier.storage.requests import S3Requests
from espalier.storage.settings import s3_settings
from tests.benchmarks.minio_server import minio_server
from tests.fakes.s3_stand_in import BUCKET

ROUNDS_OF_A_PREFIX = 10
LARGE = (17 << 20) + 7
"""Bytes of a file of two parts."""
SMALL_FILES = 12
DONE, REFUSED, FAILED = 0, 3, 1
"""How a publisher ends by itself."""


class NotWhole(Exception):
    """What a reader would find is not one whole artifact."""


@dataclass(frozen=True)
class Version:
    folder: Path
    manifest: Manifest


def main():
    """Kill publishers, look, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/publishing-kills"))
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    options.out.mkdir(parents=True, exist_ok=True)
    done = options.out / f"rounds-seed-{options.seed}.jsonl"
    rounds = [json.loads(line) for line in done.read_text().splitlines()] if done.exists() else []
    if rounds:
        print(f"goes on after {len(rounds)} rounds of {done}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="espalier-kills-") as folder,
        minio_server(Path(folder)) as environment,
    ):
        bench = Bench(environment, Path(folder))
        while sum(one["killed"] for one in rounds) < options.kills:
            rounds.append(bench.play(len(rounds), options.seed))
            with done.open("a") as stream:
                stream.write(json.dumps(rounds[-1]) + "\n")
            if len(rounds) % ROUNDS_OF_A_PREFIX == 0:
                killed = sum(one["killed"] for one in rounds)
                print(f"{len(rounds)} rounds, {killed} kills", flush=True)
        collected = bench.collect()
    faults = [fault for one in rounds for fault in one["faults"]] + collected.pop("faults")
    for fault in faults:
        print(f"NOT WHOLE: {fault}", flush=True)
    total = Counter()
    for one in rounds:
        total.update({key: value for key, value in one.items() if isinstance(value, int)})
    figures = {
        "benchmark": "publishing_kills",
        "rounds": len(rounds),
        "seed": options.seed,
        **total,
        **collected,
        "not_whole": len(faults),
    }
    print(json.dumps(figures))
    sys.exit(bool(faults))


class Bench:
    """A server, three artifacts that share files, and the processes that publish them."""

    def __init__(self, environment, folder):
        self._environment, self._folder = environment, folder
        self._versions = [self._made(number) for number in range(3)]
        self._prefixes = set()
        started = time.perf_counter()
        both = [self._publisher(f"s3://{BUCKET}/usual", version) for version in self._versions[:2]]
        for process in both:
            os.waitpid(process, 0)
        self._usual_s = time.perf_counter() - started

    def play(self, number, seed):
        """One round; what it came to."""
        rng = random.Random(f"{seed} {number}")
        uri = f"s3://{BUCKET}/runs/{number // ROUNDS_OF_A_PREFIX}/knowledge"
        self._prefixes.add(uri)
        was_there = open_location(uri, self._environment).manifest() is not None
        chosen = rng.choices(self._versions, k=2)
        faults = []
        reader = self._reader(uri, was_there)
        moments = [rng.uniform(0.0, 1.1 * self._usual_s) for _ in chosen]
        statuses = self._killed_at(moments, [self._publisher(uri, one) for one in chosen])
        faults += self._stopped(reader)
        left = self._look(uri, f"round {number}, after the kills", faults)
        if was_there and left is None:
            faults.append(f"round {number}: what was there is gone")
        last = rng.choice(self._versions)
        _, status = os.waitpid(self._publisher(uri, last), 0)
        if status or self._look(uri, f"round {number}, published again", faults) != last.manifest:
            faults.append(f"round {number}: publishing again ended with {status}")
        ends = [os.waitstatus_to_exitcode(status) for status in statuses]
        return {
            "round": f"{number}",
            "killed": ends.count(-signal.SIGKILL),
            "published": ends.count(DONE),
            "refused": ends.count(REFUSED),
            "failed": len(ends) - sum(map(ends.count, (-signal.SIGKILL, DONE, REFUSED))),
            "read": int((self._folder / "read.txt").read_text() or 0),
            "replacing": int(was_there),
            "faults": faults + [f"round {number}: a publisher failed"] * ends.count(FAILED),
        }

    def collect(self):
        """Collect what is garbage in a month, and look at every artifact after it."""
        clock = Clock(now=lambda: datetime.now(UTC) + timedelta(days=30))
        requests = S3Requests(s3_settings(self._environment))
        before = listed_below(requests, BUCKET, "runs/")
        collector = Collector(requests, BUCKET, "runs", clock, unpublished=True)
        collector.collect(DEFAULT_AGE, lambda _: None)
        after = listed_below(requests, BUCKET, "runs/")
        faults, named = [], set()
        for uri in sorted(self._prefixes):
            manifest = self._look(uri, f"{uri}, collected", faults)
            prefix = uri.removeprefix(f"s3://{BUCKET}/")
            contents = map(object_name, manifest.files.values() if manifest else ())
            named.update(f"{prefix}/{name}" for name in (*contents, "manifest.json", COLLECTING))
        faults += [f"{key} is left" for key in sorted(after.keys() - named)]
        return {"objects_before": len(before), "objects_after": len(after), "faults": faults}

    def _made(self, number):
        folder = self._folder / f"version-{number}"
        rng = random.Random(number)
        provenance = Provenance(producer="train", config_digest=f"{number}", seed=0)
        with publishing(folder, provenance) as draft:
            (draft.path / "weights").write_bytes(rng.randbytes(LARGE))
            for small in range(SMALL_FILES):
                content = f"{small} {number if small % 2 else 'shared'}"
                (draft.path / f"rows-{small}.jsonl").write_text(content)
        return Version(folder, draft.published)

    def _publisher(self, uri, version):
        return _forked(lambda: self._publish(uri, version))

    def _publish(self, uri, version):
        try:
            open_location(uri, self._environment).publish(version.folder)
        except StorageError as error:
            if "published other content" in str(error):
                return REFUSED
            raise
        return DONE

    def _killed_at(self, moments, processes):
        """The statuses of the processes, each of which is killed at its moment if it still runs."""
        started = time.perf_counter()
        statuses = {}
        for moment, process in sorted(zip(moments, processes, strict=True)):
            time.sleep(max(0.0, started + moment - time.perf_counter()))
            os.kill(process, signal.SIGKILL)  # not waited for yet, so the number is still its own
            _, statuses[process] = os.waitpid(process, 0)
        return [statuses[process] for process in processes]

    def _reader(self, uri, was_there):
        """A process that fetches until it is stopped, and ends with 1 where that went wrong."""
        (self._folder / "read.txt").write_text("")
        (self._folder / "stop").unlink(missing_ok=True)

        def read():
            fetched = 0
            while not (self._folder / "stop").exists():
                found = self._found(uri, self._folder / "watched")
                if was_there and found is None:
                    raise NotWhole("a reader found nothing where an artifact had been")
                fetched += found is not None
                (self._folder / "read.txt").write_text(f"{fetched}")
            return DONE

        return _forked(read)

    def _stopped(self, reader):
        (self._folder / "stop").touch()
        _, status = os.waitpid(reader, 0)
        return ["a reader found half an artifact: see its lines above"] if status else []

    def _look(self, uri, when, faults):
        try:
            return self._found(uri, self._folder / "looked-at")
        except NotWhole as error:
            faults.append(f"{when}: {error}")
            return None

    def _found(self, uri, target):
        """The manifest of what is there, every byte checked; None if nothing is published."""
        shutil.rmtree(target, ignore_errors=True)
        try:
            manifest = open_location(uri, self._environment).fetch(target)
        except ArtifactError as error:
            if "no manifest.json" in str(error):
                return None
            raise NotWhole(str(error)) from error
        if manifest not in [version.manifest for version in self._versions]:
            raise NotWhole("a manifest that nobody published")
        return manifest


def _forked(work):
    """A process that does the work; it has nothing else of this one's, and no thread."""
    process = os.fork()
    if process:
        return process
    status = FAILED
    try:
        status = work()
    except (ArtifactError, StorageError, NotWhole) as error:
        print(f"process {os.getpid()}: {error}", flush=True)
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
