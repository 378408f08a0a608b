"""Reads saved episodes with the real verifiers package, for a venv that has it alone.

    python read_verifiers.py FOLDER

Prints a JSON line a trace: its branches as token ids, masks and log-probs, and its reward.
"""

import json
import sys
from pathlib import Path

from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.state import State
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import Trace
from verifiers.v1.utils.trace_store import read_episodes

for episode in read_episodes(Path(sys.argv[1]), Trace[WireTaskData, State, WireAgentConfig]):
    (trace,) = episode.traces
    branches = [
        {
            "ids": branch.token_ids,
            "mask": [int(one) for one in branch.sampled_mask],
            "logprobs": branch.logprobs,
            "roles": [message.role for message in branch.messages],
            "tools": [tool.name for tool in branch.tools],
        }
        for branch in trace.branches
        if branch.trainable
    ]
    print(
        json.dumps(
            {
                "task": episode.task.data.id,
                "group": episode.group.id,
                "ok": trace.ok,
                "reward": trace.reward,
                "branches": branches,
            }
        )
    )
