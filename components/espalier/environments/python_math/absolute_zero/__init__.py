"""Absolute Zero: tasks from programs, their inputs and their outputs (arXiv:2505.03335).

proposals    programs that are chains of operations, drawn here
teacher      programs that a model proposes
screening    what a program must not name, before it is run
executing    what it returns, run twice in a sandbox
wording      the task that leaves one of program, input and output out
poser        all of it, for a phase of training
"""
