"""HTTP and WebSocket server parts shared by `serving`, `rollout.recording` and `interchange`.

`serving` answers requests with a policy, `rollout.recording` records the requests of agents. Both
listen with `listening`, read with `exchange`, and refuse with `requests.Refusal`.
"""
