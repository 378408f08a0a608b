"""A conversation with a retry, a sub-agent and a compaction, in the terms of each library.

`TASKS` are the questions of one attempt, one after the other, and what each library makes of them:

    retry        the first question is asked again, as if nothing had been answered
    sub-agent    a tool asks the model itself, with a system prompt of its own
    compaction   the conversation so far is replaced by a summary, and its last answer is kept
"""

MAIN = "You are the main agent."
HELPER = "You are the helper."
QUESTION = "look up lyon, then ask the helper"
SUMMARY = "Summary: lyon was looked up. Go on: look up graz"


def looked_up(town: str) -> str:
    return f"{town} lies on a river"
