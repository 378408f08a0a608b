"""How many programs a second are judged by their tests, through the pool?

    python -m tests.benchmarks.code_judging
    python -m tests.benchmarks.code_judging --programs 400 --judges 2

Cases are made tasks, whose values are compared outside of the sandbox; checks are the same tests
run beside the program. Every program is another text, so that none is known already. A figure
counts whole programs, with the loan, reset and probe of their sandbox. Prints a table, and JSON in
its last line.
"""

import argparse
import asyncio
import json
import os
import time

from espalier.config import Profile
from espalier.environments import family_of
from espalier.records import Task
from espalier.sandbox.choice import sandbox_pool
from espalier_environments.code.family import ProgramJudge
from espalier_environments.code.unit_tests import unit_tests_of
from tests.benchmarks.keeping import provenance


def main() -> None:
    """Measure both kinds of tests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--judges", type=int, default=2, help="sandboxes at one time")
    options = parser.parse_args()
    sandbox = {"packages": [], "size": 4 * options.judges}
    profile = Profile.model_validate({"environment": {"name": "code", "sandbox": sandbox}})
    tasks = family_of(profile).tasks("train", 50)
    found: dict[str, object] = {"judges": options.judges, "cores": os.cpu_count()}
    print("tests      programs/s    tests/s    passed")
    with sandbox_pool(profile.environment.sandbox, profile.kubernetes) as pool:
        for kind in ("cases", "checks"):
            asked = [task if kind == "cases" else _with_checks(task) for task in tasks]
            seconds, passed = asyncio.run(_judge(ProgramJudge(pool, 10.0), asked, options.programs))
            num_tests = len(unit_tests_of(asked[0]).hidden)
            rate = options.programs / seconds
            print(f"{kind:<9} {rate:>11.1f} {rate * num_tests:>10.1f} {passed:>9}")
            found[kind] = {"programs_per_s": round(rate, 1), "tests_per_s": round(rate * num_tests)}
    print(json.dumps({**found, "load": os.getloadavg()[0], "origin": provenance(1)}))


def _with_checks(task: Task) -> Task:
    """The task with a preamble, with which its tests are no cases."""
    return task.model_copy(update={"arguments": {**task.arguments, "preamble": "pass"}})


async def _judge(court: ProgramJudge, tasks: list[Task], count: int) -> tuple[float, int]:
    """Seconds, and how many programs passed; the first few start the sandboxes."""
    await asyncio.gather(*(court.judgement(task, task.verifier.gold[0]) for task in tasks[:4]))
    began_s = time.monotonic()
    found = await asyncio.gather(
        *(
            court.judgement(task, f"{task.verifier.gold[0]}\n# {number}")
            for number, task in ((n, tasks[n % len(tasks)]) for n in range(count))
        )
    )
    return time.monotonic() - began_s, sum(one.report.all_passed for one in found)


if __name__ == "__main__":
    main()
