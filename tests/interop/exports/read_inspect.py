"""Reads a log with Inspect's own functions, for a venv that has it.

    python read_inspect.py FILE

Prints a JSON line: what `inspect view` reads of the log, and each of its samples.
"""

import json
import sys
from pathlib import Path

from inspect_ai.log import (
    list_eval_logs,
    read_eval_log,
    read_eval_log_sample,
    read_eval_log_sample_summaries,
)

path = Path(sys.argv[1])
listed = [info.name for info in list_eval_logs(str(path.parent))]
header = read_eval_log(str(path), header_only=True)
summaries = read_eval_log_sample_summaries(str(path))
samples = []
for summary in summaries:
    sample = read_eval_log_sample(str(path), summary.id, summary.epoch)
    scores = {name: score.value for name, score in (sample.scores or {}).items()}
    samples.append(
        {
            "id": sample.id,
            "right": scores.get("right"),
            "reward": scores.get("reward"),
            "roles": [message.role for message in sample.messages],
            "texts": [message.text for message in sample.messages],
            "calls": [
                [call.function, call.arguments]
                for message in sample.messages
                if message.role == "assistant"
                for call in message.tool_calls or ()
            ],
            "finish": sample.metadata["finish_reason"],
            "tokens": sum(usage.output_tokens for usage in sample.model_usage.values()),
            "error": sample.error and sample.error.message,
        }
    )
assert header.results is not None
print(
    json.dumps(
        {
            "listed": any(path.name in name for name in listed),
            "summaries": len(summaries),
            "accuracy": header.results.scores[0].metrics["accuracy"].value,
            "samples": samples,
        }
    )
)
