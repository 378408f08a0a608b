"""A policy behind an OpenAI-compatible endpoint, and the controller that follows `champion`.

endpoint        python -m espalier.serving.endpoint --host 0.0.0.0 --port 8000
fetched         python -m espalier.serving.fetched vllm serve POLICY ...
controller      python -m espalier.serving.controller --model NAME --namespace NAME
on a laptop     espalier serve runs/demo/trained_policy/policy

Path of a request: connections (places, deadlines) -> app (keys, admission) -> requests ->
planning -> answering -> choice, answers. The engine runs in a thread of its own. The controller
is following -> decision, and workload, which is deployment or llm_services.
"""
