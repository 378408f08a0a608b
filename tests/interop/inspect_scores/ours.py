"""What our verifiers make of the outputs."""

import asyncio
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from espalier.environments.teaching import play_script
from espalier.records import FinalAnswer
from espalier.rewards.math_equivalence import final_answer
from espalier_environments.function_calling.answers import answer_fault
from espalier_environments.function_calling.conversations import conversation_fault, played_turns
from espalier_search.search_qa.benchmarks import answer_scores
from tests.interop.inspect_scores.calls import TALKS
from tests.interop.inspect_scores.rows import family


def verdicts(rows):
    """Score name -> one {kind: (value, why)} for each row."""
    name = rows[0].task
    if name in ("humaneval", "mbpp"):
        return {"pass_rate": asyncio.run(_programs(rows))}
    found = defaultdict(list)
    for row in rows:
        scored = {kind: _scores(name, row.ours, output) for kind, output in row.outputs.items()}
        for score in next(iter(scored.values())):
            found[score].append({kind: one[score] for kind, one in scored.items()})
    return dict(found)


def _scores(name, task, output):
    if name == f"bfcl/{TALKS}":
        fault = conversation_fault(task, played_turns(task, output))
        return {"accuracy": (float(not fault), fault)}
    if name.startswith("bfcl/"):
        fault = answer_fault(task, output)
        return {"accuracy": (float(not fault), fault)}
    if name == "squad":
        scores = answer_scores(output, task.verifier.gold)
        return {score: (value, "") for score, value in scores.items()}
    said = final_answer(output)  # as an episode reads its last message
    return {"accuracy": (family("python_math").verify(task, said), said)}


async def _programs(rows):
    """Each program as the last message of an episode, in sandboxes of this machine."""
    coding = family("code")
    with TemporaryDirectory() as folder, coding.environments(Path(folder)) as over:
        environments = over("heldout")
        turns = asyncio.Semaphore(2)

        async def score(task, text):
            async with turns:
                played = await play_script(environments, task, _answers(text))
            return coding.official_scores(task, played)["pass_rate"], ""

        return [
            {kind: await score(row.ours, text) for kind, text in row.outputs.items()}
            for row in rows
        ]


def _answers(text):
    yield FinalAnswer(text)
