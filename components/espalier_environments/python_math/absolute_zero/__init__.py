"""Absolute Zero: tasks from programs, their inputs and their outputs (arXiv:2505.03335).

programs     calculations drawn as programs; the screening of a model's programs
teacher      programs that a model proposes
proposer     runs programs in a sandbox and writes the tasks, for a phase of training
"""
