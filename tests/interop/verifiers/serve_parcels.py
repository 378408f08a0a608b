"""The EnvServer of the taskset parcels_v1.py, as somebody else starts one.

python serve_parcels.py PORT
"""

import sys
from pathlib import Path

from verifiers.v1.serve import serve_env

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1] / "agents"))  # of the words of the taskset
    env = {"taskset": {"id": "parcels-v1"}, "agent": {"runtime": {"type": "subprocess"}}}
    serve_env(max_workers=1, address=f"tcp://127.0.0.1:{sys.argv[1]}", config_data=env)
