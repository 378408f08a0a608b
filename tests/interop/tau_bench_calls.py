"""Plays calls with tau-bench's own tools; run by `tau_bench.py` in a process of its own.

python tau_bench_calls.py CHECKOUT JOBS: a JSON list of {"domain": ..., "calls": [{name, kwargs}]}
in, a list of {"succeeded": [bool], "digest": ...} on standard output, in that order. It imports
nothing of espalier: what the digest is made of is said twice, here and in `database.py`.
"""

import copy
import hashlib
import importlib
import json
import sys
import types
from pathlib import Path


def written(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


class Domain:
    def __init__(self, checkout, name):
        tools = importlib.import_module(f"tau_bench.envs.{name}.tools").ALL_TOOLS
        self.tools = {tool.get_info()["function"]["name"]: tool for tool in tools}
        self.load = importlib.import_module(f"tau_bench.envs.{name}.data").load_data
        self.before = {
            (table, key): written(record)
            for table, records in self.load().items()
            for key, record in records.items()
        }

    def play(self, calls):
        data = self.load()
        succeeded = [self._succeeds(data, call) for call in calls]
        changed = {}
        for table, records in data.items():
            for key, record in records.items():
                if self.before.get((table, key)) != written(record):
                    changed.setdefault(table, {})[key] = record
        digest = hashlib.sha256(written(changed).encode()).hexdigest()
        return {"succeeded": succeeded, "digest": digest}

    def _succeeds(self, data, call):
        # arguments become part of the database: a copy, or the next replay has others
        try:
            said = self.tools[call["name"]].invoke(data=data, **copy.deepcopy(call["kwargs"]))
        except Exception:  # noqa: BLE001 (as tau_bench.envs.base.Env.step does)
            return False
        return said is not None and not said.startswith("Error")


def main(checkout, jobs):
    sys.path.insert(0, checkout)
    # the simulated user's client, which no tool needs
    client = types.ModuleType("litellm")
    client.__dict__["completion"] = None
    sys.modules["litellm"] = client
    domains = {name: Domain(checkout, name) for name in ("retail", "airline")}
    asked = json.loads(Path(jobs).read_text())
    print(json.dumps([domains[job["domain"]].play(job["calls"]) for job in asked]))


if __name__ == "__main__":
    main(*sys.argv[1:])
