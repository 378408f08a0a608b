"""Reward models: heads on a policy's body that score the steps, or the outcome, of attempts.

warm policy -> attempts -> labels of their steps -> head -> terms of the reward in training
"""
