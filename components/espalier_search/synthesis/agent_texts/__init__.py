"""Agent texts for continued pre-training (AgentFounder, arXiv:2509.13310).

writing      all texts of a run, by the profile
calls        requests to a model, and the types of its answers
first_order  FAS: plans about memories, and reasoning from given knowledge
decisions    HAS: trajectories as choices with a known outcome
negatives    texts about calls that must not be made
embedded     a model that answers the requests without any network
schema       the knowledge of that model, and its reading of questions and plans
"""
