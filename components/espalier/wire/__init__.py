"""What servers of this library share: connections with places and deadlines, bodies, requests.

`serving` answers with a policy, `rollout.recording` records what agents ask; both listen with
`listening`, read with `exchange`, and refuse with `requests.Refusal`.
"""
