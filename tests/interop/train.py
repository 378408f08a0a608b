"""Train the parcel desk through an agent written with a real package.

    python -m tests.interop.train openai_agents --out runs/openai-agents
    python -m tests.interop.train langgraph --out runs/langgraph
    python -m tests.interop.train inspect --out runs/inspect
    python -m tests.interop.train verifiers --out runs/verifiers

The profile is that of examples/own_agent, smaller: 16 steps of 80 attempts, 100 held-out questions.
With `inspect` each attempt is a task of Inspect, whose scorer's reward is posted and trained on.
With `verifiers` it is a task of the taskset of tests/interop/verifiers, which its EnvServer plays
and rewards.

About a quarter of an hour on two busy cores, most of it in the agents' own libraries.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.interop.venvs import ROOT, python_of

PROFILE = "examples/own_agent/profile.toml"
OF_VERIFIERS = "tests/interop/verifiers/profile.toml"
PROGRAMS = (
    "agent.tasks_per_process=10000",
    "agent.processes=3",
    "agent.deadline_s=120.0",
)
SETTINGS = (
    "synthesis.heldout_tasks=100",
    "warm_start.dev_questions=40",
    "training.steps=16",
    "training.tasks_per_step=10",
    "training.evaluate_every=16",
    "training.dev_questions=40",
)


def settings(name):
    """The profile of an agent, and the keys that differ from it."""
    if name == "verifiers":
        return OF_VERIFIERS, (f'agent.verifiers.python="{python_of(name)}"', *SETTINGS)
    player = Path("tests/interop/agents") / f"{name}_player.py"
    command = f"agent.command={json.dumps([str(python_of(name)), str(player)])}"
    posted = ('agent.score="posted"',) if name == "inspect" else ()
    return PROFILE, (command, *posted, *PROGRAMS, *SETTINGS)


def main():
    """Run the chain with the agent of a package."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=("openai_agents", "langgraph", "inspect", "verifiers"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="a further key of the profile")
    options = parser.parse_args()
    command = [sys.executable, "-c", "from espalier.cli import main; main()", "run"]
    profile, differing = settings(options.name)
    command += ["--profile", profile, "--out", str(options.out), "--set", f"seed={options.seed}"]
    for one in (*differing, *options.set):
        command += ["--set", one]
    path = os.pathsep.join(filter(None, ["examples/own_environment", os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, check=False)
    sys.exit(ended.returncode)


if __name__ == "__main__":
    main()
