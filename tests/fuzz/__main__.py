"""Fuzzers: valid messages that are changed as JSON, as HTTP and as bytes, from a seed.

    python -m tests.fuzz endpoint --seed 0 --cases 100000
    python -m tests.fuzz endpoint runs frames sandboxd calls services --seed 1 --seconds 300

    endpoint   the OpenAI-compatible endpoint, over loopback
    recording  the endpoint that records agents, in its three wire formats, over loopback
    runs       what sandboxd reads of a run, in this process
    frames     what the client of a sandbox reads of a server that lies
    sandboxd   the server in a local sandbox, asked with its token (needs bubblewrap)
    calls      what the parser of each dialect reads of a policy's message
    judgements  what is read of a judge's answer
    traces      demonstrations and preference pairs of the user, and their tokens
    transcripts the extractors of answers from transcripts of others
    patches     unified diffs, and blocks of search and replace
    services    tables of customer service, and arguments of its tools
    shops       WebShop's files, and calls in a visit to what they hold
    pages       pages of the text web, arguments of its tools, tasks in WebArena's format
    programs    files of programming tasks, answers, and what a program's process writes
    queries     files and dumps of questions in SQL, queries in a process, rows as answers
    puzzles     answers to procedural questions, their scorers where they are installed
    mcp         answers of MCP servers, and streams of events
    functions   rows of function-calling benchmarks, answers, and arguments of the services' tools

Each case has a deadline, an answer is always well-formed, memory stays flat, and a well-behaved
request between the cases is answered. A failing case is printed with its seed, made small, and with
the command that repeats it. The last line is one JSON object; the exit status is 1 after a failure.
"""

import argparse
import asyncio
import base64
import json
import shutil
import sys

from tests.fuzz.campaign import Violation, case_of, fuzz, outcome_of
from tests.fuzz.functions import Functions
from tests.fuzz.mcp_servers import McpServers
from tests.fuzz.pages import Pages
from tests.fuzz.parsers import Calls, Judgements, Runs, Traces, Transcripts
from tests.fuzz.patches import Patches
from tests.fuzz.programs import Programs
from tests.fuzz.puzzles import Puzzles
from tests.fuzz.queries import Queries
from tests.fuzz.recording import Recording
from tests.fuzz.servers import Endpoint, Frames, Sandboxd
from tests.fuzz.services import Services
from tests.fuzz.shops import Shops

TARGETS = {
    target.name: target
    for target in (
        Endpoint,
        Recording,
        Runs,
        Frames,
        Sandboxd,
        Calls,
        Judgements,
        Traces,
        Transcripts,
        Services,
        Shops,
        Pages,
        Functions,
        Patches,
        Programs,
        Queries,
        Puzzles,
        McpServers,
    )
}


def main(arguments=None):
    """Fuzz the targets one after the other, or repeat one case."""
    options = _options(arguments)
    if options.case is not None or options.bytes is not None:
        sys.exit(asyncio.run(_repeat(options)))
    reports = []
    skipped = {}
    for name in options.target:
        if name == "sandboxd" and shutil.which("bwrap") is None:
            skipped[name] = "bubblewrap is not installed"
            print(f"{name}: skipped, {skipped[name]}", flush=True)
            continue
        report = asyncio.run(
            fuzz(
                TARGETS[name](),
                seed=options.seed,
                cases=options.cases,
                seconds=options.seconds,
                say=lambda line: print(line, flush=True),
            )
        )
        reports.append(report)
        for failure in report.failures:
            if failure.number < 0:
                print(f"FAILED {name}: {failure.reason}", flush=True)
    figures = [report.figures() for report in reports]
    print(json.dumps({"fuzz": figures, "skipped": skipped}))
    if any(report.failures or not report.is_flat for report in reports):
        sys.exit(1)


async def _repeat(options):
    """Run one case; whether it fails."""
    target = TARGETS[options.target[0]]()
    if options.bytes is not None:
        case = base64.b64decode(options.bytes)
    else:
        case = case_of(target, options.seed, options.case)
    print(repr(case))
    async with target.opened():
        outcome = await outcome_of(target, case)
    is_violation = isinstance(outcome, Violation)
    print(json.dumps({"outcome": str(outcome), "failed": is_violation}))
    return int(is_violation)


def _options(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", nargs="+", choices=TARGETS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10**9, help="of each target")
    parser.add_argument("--seconds", type=float, default=360.0, help="of each target, at most")
    parser.add_argument("--case", type=int, help="run this one alone")
    parser.add_argument("--bytes", help="run this one alone, in base64")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
