"""HTTP and WebSocket server parts, for `serving` and for packages with servers of their own.

`serving` answers requests with a policy, `espalier_interop.recording` records those of agents. Both
listen with `listening`, read with `exchange`, and refuse with `requests.Refusal`.
"""
