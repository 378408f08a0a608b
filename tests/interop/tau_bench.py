"""Compares the tools of `customer_service` with tau-bench's own, call by call and state by state.

    python -m tests.interop.tau_bench CHECKOUT [--write]

CHECKOUT is a folder of github.com/sierra-research/tau-bench (59a200c), whose tools run in a process
of their own. The gold actions of every task are played, and calls whose arguments were spoilt:
after each job the databases have to be equal, and each call has to succeed in both or in neither.
`--write` renews tests/golden/tau_bench.json, by which the test suite checks the same.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from espalier.records import Message, Task, TaskMetadata, ToolCall, Verifier
from espalier_environments.customer_service.database import load_database
from espalier_environments.customer_service.domains import TRANSFER, domain_tools, service_of

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data" / "tau_bench"
GOLDEN = ROOT / "tests" / "golden" / "tau_bench.json"
SETS = {"retail": ("test", "dev", "train"), "airline": ("test",)}
CALLS_OF_JOB = 12
PLAYER = Path(__file__).with_name("tau_bench_calls.py")
TASK = Task(
    task_id="interop",
    prompt=(Message(role="user", content="interop"),),
    environment="customer_service",
    verifier=Verifier(gold=("",)),
    metadata=TaskMetadata(split="heldout", source="tau-bench"),
)


def gold_jobs():
    """A job for each public task: its gold actions, transfers left out as they are upstream."""
    for domain, splits in SETS.items():
        for split in splits:
            for task in json.loads((SHARED / domain / f"tasks_{split}.json").read_text()):
                calls = [call for call in task["actions"] if call["name"] != TRANSFER]
                yield {"name": f"{domain}/{split}", "domain": domain, "calls": calls}


def spoilt_jobs(seed, count):
    """Gold calls with arguments that are missing, of other types, or of other records."""
    dice = random.Random(seed)
    for domain in SETS:
        golds = [job["calls"] for job in gold_jobs() if job["domain"] == domain]
        by_tool, values = {}, {}
        for call in (call for calls in golds for call in calls):
            by_tool.setdefault(call["name"], []).append(call["kwargs"])
            for name, value in call["kwargs"].items():
                values.setdefault(name, []).append(value)
        tools = [tool.spec for tool in domain_tools(domain)]
        for _ in range(count):
            drawn = dice.choices(tools, k=CALLS_OF_JOB)
            calls = [spoilt_call(dice, tool, by_tool.get(tool.name), values) for tool in drawn]
            if dice.random() < 0.5:  # right ones among them, so that errors meet changed records
                place = dice.randrange(len(calls))
                calls[place:place] = dice.choice(golds)
            yield {"name": f"{domain}/spoilt", "domain": domain, "calls": calls}


def spoilt_call(dice, tool, golds, values):
    """A call of `tool` whose arguments come of gold calls, up to two of them changed."""
    kwargs = dict(dice.choice(golds or [{}]))
    for name in tool.parameters.get("properties", {}):
        if name not in kwargs or dice.random() < 0.2:
            kwargs[name] = dice.choice(values.get(name, ["1 + 2"]))
    for _ in range(dice.choice((0, 1, 1, 2))):
        spoil(dice, kwargs, values)
    return {"name": tool.name, "kwargs": kwargs}


def spoil(dice, kwargs, values):
    """Change one argument."""
    if not kwargs or dice.random() < 0.1:
        kwargs["unasked"] = "1"
        return
    name = dice.choice(list(kwargs))
    odd = [7, 0, 2.5, True, None, [], ["1"], [{}]]
    if not isinstance(kwargs[name], list):
        # text and objects in the place of a list are refused here, and upstream taken by length
        odd += ["", "x", "#W0000000", "2 * (3 + 4)", "1 / 0", {}]
    match dice.randrange(4):
        case 0:
            del kwargs[name]
        case 1:
            kwargs[name] = dice.choice(values.get(name, odd))
        case 2 if isinstance(kwargs[name], list) and kwargs[name]:
            entries = [*kwargs[name]]
            place = dice.randrange(len(entries))
            if isinstance(entries[place], dict):
                entries[place] = dict(entries[place])
                spoil(dice, entries[place], values)
            else:
                entries[place] = dice.choice(odd)
            kwargs[name] = dice.choice((entries, entries[1:], entries + entries[:1]))
        case _:
            kwargs[name] = dice.choice(odd)


def played_here(job, databases):
    """What our tools make of a job."""
    service = service_of(job["domain"], databases[job["domain"]])
    succeeded = [
        service.tools[call["name"]]
        .call(ToolCall(name=call["name"], arguments=call["kwargs"]), TASK)
        .succeeded
        for call in job["calls"]
    ]
    return {"succeeded": succeeded, "digest": service.state.digest()}


def played_upstream(jobs, checkout):
    """What tau-bench's tools make of them."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder, "jobs.json")
        asked.write_text(json.dumps(jobs))
        argv = [sys.executable, str(PLAYER), str(checkout), str(asked)]
        return json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)


def write_golden(jobs, theirs):
    """Keep the final states of the public tasks, a case for each set."""
    digests = {}
    for job, there in zip(jobs, theirs, strict=True):
        if not job["name"].endswith("spoilt"):
            digests.setdefault(job["name"], []).append(there["digest"][:16])
    source = {
        "repo": "sierra-research/tau-bench",
        "file": "tau_bench/envs/*/tools",
        "function": "invoke",
        "commit": "59a200c",
        "how": "the gold actions of each task on a fresh database, transfers left out",
    }
    cases = [
        {"name": name, "source": source, "expected": found, "tolerance": "exact"}
        for name, found in digests.items()
    ]
    golden = {
        "topic": "tau_bench",
        "format": 1,
        "conventions": "expected: of each task, in the order of the file, the first 16 digits of "
        "SHA-256 of the records that differ from the fresh database, {table: {id: record}} as JSON "
        "with sorted keys and without blanks",
    }
    lines = ",\n".join(json.dumps(case) for case in cases)
    head = json.dumps(golden)[:-1]
    GOLDEN.write_text(f'{head}, "cases": [\n{lines}\n]}}\n')


def main():
    parser = argparse.ArgumentParser(description="Compare our tools with those of tau-bench.")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spoilt", type=int, default=100, help="jobs of 12 calls, for each domain")
    options = parser.parse_args()

    databases = {domain: load_database(SHARED / domain / "data", domain) for domain in SETS}
    jobs = [*gold_jobs(), *spoilt_jobs(options.seed, options.spoilt)]
    theirs = played_upstream(jobs, options.checkout)
    counted = {}
    for job, there in zip(jobs, theirs, strict=True):
        here = played_here(job, databases)
        row = counted.setdefault(job["name"], {"jobs": 0, "states": 0, "calls": 0, "agree": 0})
        row["jobs"] += 1
        row["states"] += here["digest"] == there["digest"]
        row["calls"] += len(job["calls"])
        agreed = zip(here["succeeded"], there["succeeded"], strict=True)
        row["agree"] += sum(a == b for a, b in agreed)
        for call, a, b in zip(job["calls"], here["succeeded"], there["succeeded"], strict=True):
            if a != b:
                print(f"differs: succeeds here {a}, upstream {b}: {json.dumps(call)}")
    for name, row in counted.items():
        print(f"{name:16}", *(f"{key} {value}" for key, value in row.items()))
    if options.write:
        write_golden(jobs, theirs)
    equal = all(
        row["states"] == row["jobs"] and row["agree"] == row["calls"] for row in counted.values()
    )
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
