"""prepare_policy: the base policy and its browsing pre-stage."""
