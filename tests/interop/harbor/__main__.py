"""Public task folders, read by espalier's reader and by Harbor's own models.

    python -m tests.interop.harbor FOLDER

FOLDER is a checkout with task folders at any depth. Prints a JSON object with counts.
"""

import argparse
import collections
import json
import subprocess
from pathlib import Path

from espalier.records import DataError
from espalier_interop.harbor.reading import read_folder
from tests.interop.venvs import python_of

THEIRS = Path(__file__).parent / "read_theirs.py"


def theirs(paths):
    """What Harbor reads of each task.toml."""
    done = subprocess.run(
        [python_of("harbor"), THEIRS], input="\n".join(map(str, paths)),
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def ours(folder):
    """The same values of a folder as read here."""
    config = folder.config
    environment, verifier = config.environment, config.verifier
    return {
        "schema_version": config.schema_version,
        "name": config.task.name,
        "metadata": json.loads(json.dumps(config.metadata, default=str)),
        "docker_image": environment.docker_image,
        "os": environment.os.lower(),
        "gpus": environment.gpus,
        "workdir": environment.workdir,
        "variables": environment.env,
        "num_servers": len(environment.mcp_servers),
        "agent_timeout": config.agent.timeout_sec,
        "verifier_timeout": verifier.timeout_sec,
        "verifier_variables": verifier.env,
        "mode": verifier.environment_mode,
        "num_steps": len(config.steps),
    }


def compare(root):
    """Counts over the task folders below `root`, and what differs."""
    paths = sorted(root.rglob("task.toml"))
    counts, needs, remarks = collections.Counter(), collections.Counter(), []
    for path, their in zip(paths, theirs(paths), strict=True):
        counts["folders"] += 1
        try:
            folder = read_folder(path.parent)
        except DataError as error:
            counts["refused"] += 1
            remarks.append(f"{error} (Harbor: {their.get('error', 'reads it')})")
            continue
        counts["read"] += 1
        counts["equal"] += ours(folder) == their
        if ours(folder) != their:
            remarks.append(f"{path}: {their}")
        needs.update({need.kind for need in folder.needs})
        counts["without needs"] += not folder.needs
        try:
            folder.environment_files()
            counts["staged"] += 1
        except DataError as error:
            remarks.append(str(error))
    return {**counts, "needs": dict(needs), "remarks": remarks}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    print(json.dumps(compare(parser.parse_args().folder), indent=1))
