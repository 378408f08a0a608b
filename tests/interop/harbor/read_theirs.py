"""Reads task.toml files with Harbor's own models, for a venv that has it alone.

    python read_theirs.py < PATHS

Prints a JSON line a path: the values that espalier reads too, or Harbor's error.
"""

import json
import sys
import warnings
from pathlib import Path

from harbor.models.task.config import TaskConfig

warnings.simplefilter("ignore")
for line in sys.stdin:
    path = Path(line.strip())
    try:
        task = TaskConfig.model_validate_toml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        print(json.dumps({"error": str(error)[:300]}))
        continue
    environment, verifier = task.environment, task.verifier
    print(
        json.dumps(
            {
                "schema_version": task.schema_version,
                "name": task.task.name if task.task else "",
                "metadata": json.loads(json.dumps(task.metadata, default=str)),
                "docker_image": environment.docker_image,
                "os": environment.os.value,
                "gpus": environment.gpus,
                "workdir": environment.workdir,
                "variables": environment.env,
                "num_servers": len(environment.mcp_servers),
                "agent_timeout": task.agent.timeout_sec,
                "verifier_timeout": verifier.timeout_sec,
                "verifier_variables": verifier.env,
                "mode": verifier.environment_mode.value if verifier.environment_mode else None,
                "num_steps": len(task.steps or []),
            }
        )
    )
