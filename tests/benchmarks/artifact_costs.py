"""What publishing to S3 and fetching from it cost, on a MinIO of this machine.

    python -m tests.benchmarks.artifact_costs --runs 3

Two artifacts: 512 MB in two files, and 2,000 files of a kilobyte. For each: published to an empty
prefix, published again as it is, fetched. Seconds are the least of the runs; processor seconds and
requests are those of this process. To compare two commits, name the other one's components in
PYTHONPATH. The last line is one JSON object.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import urllib3

import espalier
from espalier.records import Provenance, publishing
from espalier.storage import open_location
from tests.benchmarks.minio_server import minio_server
from tests.fakes.s3_stand_in import BUCKET

LARGE = (256 << 20, 2)
"""Bytes of a file, files."""
SMALL = (1 << 10, 2000)


def main():
    """Time, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    figures = {"benchmark": "artifact_costs", "runs": options.runs, "code": espalier.__file__}
    with (
        tempfile.TemporaryDirectory(prefix="espalier-costs-") as folder,
        minio_server(Path(folder)) as environment,
    ):
        for name, (num_bytes, num_files) in {"large": LARGE, "small": SMALL}.items():
            made = Path(folder) / name
            _make(made, num_bytes, num_files)
            figures[name] = _timed(made, environment, Path(folder) / "fetched", options.runs)
            print(f"{name}: {figures[name]}", flush=True)
    print(json.dumps(figures))


def _make(folder, num_bytes, num_files):
    with publishing(folder, Provenance(producer="train", config_digest="c", seed=0)) as draft:
        for number in range(num_files):
            path = draft.path / f"{number % 50}" / f"{number}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(os.urandom(num_bytes))


def _timed(made, environment, fetched, runs):
    """Seconds, processor seconds and requests of each operation, the quickest of its runs."""
    found = {}
    for run in range(runs):
        place = open_location(f"s3://{BUCKET}/{made.name}/{run}", environment)
        operations = {
            "publish": lambda place=place: place.publish(made),
            "publish_again": lambda place=place: place.publish(made),
            "fetch": lambda place=place: place.fetch(fetched),
        }
        for name, operation in operations.items():
            with _Requests() as requests:
                begun, used = time.perf_counter(), time.process_time()
                operation()
                seconds, cpu = time.perf_counter() - begun, time.process_time() - used
            entry = {
                "seconds": round(seconds, 2),
                "cpu_seconds": round(cpu, 2),
                "requests": requests.count,
            }
            if name not in found or seconds < found[name]["seconds"]:
                found[name] = entry
        shutil.rmtree(fetched)
    return found


class _Requests:
    """Counts what urllib3 sends within the block."""

    def __enter__(self):
        self.count, self._sent = 0, urllib3.PoolManager.urlopen

        def counting(pool, *arguments, **named):
            self.count += 1
            return self._sent(pool, *arguments, **named)

        urllib3.PoolManager.urlopen = counting
        return self

    def __exit__(self, *_):
        urllib3.PoolManager.urlopen = self._sent


if __name__ == "__main__":
    main()
