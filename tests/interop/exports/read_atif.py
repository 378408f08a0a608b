"""Reads ATIF documents with Harbor's own models, for a venv that has it alone.

    python read_atif.py FILE

Prints a JSON line a document: the tokens that its steps sampled, and what the models write again.
"""

import json
import sys
from pathlib import Path

from harbor.models.trajectories import Trajectory

for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
    document = Trajectory.model_validate_json(line)
    metrics = [step.metrics for step in document.steps if step.metrics]
    sampled = [token for one in metrics for token in one.completion_token_ids]
    print(json.dumps({"sampled": sampled, "again": document.to_json_dict()}))
