"""evaluate, report, chat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.app import app, examples, print_json
from espalier.cli.options import JsonOption, RunArgument


@app.command(
    epilog=examples(
        "espalier evaluate policy --run runs/demo",
        "espalier evaluate runs/demo/warm_policy/policy --run runs/demo --json",
    )
)
def evaluate(
    *,
    policy: Annotated[
        Path, typer.Argument(metavar="POLICY", help="A Hugging Face model directory.")
    ],
    run: Annotated[Path, typer.Option("--run", help="The run whose held-out suite is asked.")],
    as_json: JsonOption = False,
) -> None:
    """Judge a policy on the held-out questions of a run."""
    from espalier.orchestration.judging import evaluate_policy

    judged = evaluate_policy(run, policy)
    if as_json:
        print_json(judged.figures)
    else:
        typer.echo(judged.table)


@app.command(epilog=examples("espalier report runs/demo"))
def report(*, run: RunArgument) -> None:
    """Write report.html and summary.json of a run again."""
    from espalier.reporting import write_report, write_summary

    write_summary(run, None)
    typer.echo(str(write_report(run)))


@app.command(
    epilog=examples(
        "espalier chat runs/demo",
        "espalier chat runs/demo --question 'what is the currency of the country of Lyon?'",
        "espalier chat runs/demo --policy runs/demo/warm_policy/policy",
    )
)
def chat(
    *,
    run: RunArgument,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", help="A model directory; default: the run's trained policy."),
    ] = None,
    question: Annotated[
        str | None, typer.Option("--question", help="Ask this, print the episode, and leave.")
    ] = None,
) -> None:
    """Talk to a policy and see its searches.

    An empty line or the end of input leaves.
    """
    from espalier.orchestration.chatting import Conversation, transcript

    with Conversation.opened(run, policy) as conversation:
        if question is not None:
            typer.echo(transcript(conversation.ask(question)))
            return
        for line in iter(_read_question, ""):
            typer.echo(transcript(conversation.ask(line)))


def _read_question() -> str:
    try:
        return typer.prompt("question", default="", show_default=False, err=True).strip()
    except typer.Abort:
        return ""
