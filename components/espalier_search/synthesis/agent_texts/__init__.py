"""Agent texts for continued pre-training (AgentFounder, arXiv:2509.13310).

writing      all texts of a run, as the profile asks
calls        what a model is asked and must answer
first_order  FAS: plans about memories, and reasoning from given knowledge
decisions    HAS: trajectories as choices with a known outcome
negatives    calls that must not be made
embedded     a model that answers the calls without any network; schema: what it knows and reads
"""
