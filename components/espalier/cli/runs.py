"""run, evaluate, reward-model, report, chat, step, doctor."""

from __future__ import annotations

import enum
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.app import (
    JsonOption,
    ProfileOption,
    RunArgument,
    RunsOption,
    SetOption,
    app,
    examples,
    print_json,
    resumable,
)


class Runner(enum.StrEnum):
    """Runner of the stages."""

    IN_PROCESS = "in-process"
    KFP_LOCAL = "kfp-local"


class RewardModelKind(enum.StrEnum):
    """Kind of reward model: it scores every step of an attempt, or only its end."""

    PROCESS = "process"
    OUTCOME = "outcome"


_HOW_TO_GO_ON = {
    Runner.IN_PROCESS: "The same command resumes from the last checkpoint",
    Runner.KFP_LOCAL: "The same command starts the pipeline again",
}


@app.command(
    epilog=examples(
        "espalier run --profile smoke --out runs/try",
        "espalier run --set training.steps=50 --set seed=1 --out runs/s1",
        "espalier run --profile my/own.toml --runner kfp-local --json",
    )
)
def run(
    *,
    profile: ProfileOption = "laptop",
    set_: SetOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run; default runs/<profile>.")
    ] = None,
    runner: Annotated[Runner, typer.Option("--runner", help="Runner of the stages.")] = (
        Runner.IN_PROCESS
    ),
    as_json: JsonOption = False,
) -> None:
    """Run the whole chain, from knowledge source to registered model.

    The same command resumes a killed run, and keeps every artifact that is still current. Prints
    the table of results; --json prints RUN/summary.json.
    """
    from espalier.steps.profiles import named_profile, preset_line

    chosen = named_profile(profile, set_ or ())
    if line := preset_line(chosen):
        typer.echo(line, err=True)
    run_dir = out or Path("runs") / chosen.name
    with resumable(_HOW_TO_GO_ON[runner]):
        from espalier.orchestration import runs
        from espalier.orchestration.results import results_text

        run_chain = runs.run_kfp_local if runner is Runner.KFP_LOCAL else runs.run_in_process
        summary = run_chain(chosen, run_dir, lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(summary)
    else:
        typer.echo(results_text(run_dir, summary))


@app.command(
    epilog=examples(
        "espalier evaluate policy --run runs/demo",
        "espalier evaluate runs/demo/warm_policy/policy --run runs/demo --json",
        "espalier evaluate espalier-search-agent@champion --suite gsm8k,hotpot "
        "--profile examples/suites.toml",
        "espalier evaluate runs/b/trained_policy/policy --suite heldout --run runs/a",
        "espalier evaluate http://127.0.0.1:8000/v1#Qwen3-4B --suite python_math "
        "--against small --profile examples/suites.toml",
        "espalier evaluate https://host/v1#big --suite gsm8k --key-variable HOST_API_KEY "
        "--profile examples/suites.toml --out evaluations/big",
    )
)
def evaluate(  # noqa: PLR0913 (the options of a command)
    context: typer.Context,
    *,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model directory; with --suite also NAME, NAME@champion or NAME/3 of the "
            "registry, an endpoint of the profile, or URL#MODEL.",
        ),
    ],
    run: Annotated[
        Path | None, typer.Option("--run", help="Run whose held-out suite is used.")
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            "--suite",
            metavar="NAME[,NAME]",
            help="Suites of the profile, families, or heldout with --run.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="MODEL", help="Second model, compared task by task."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for attempts and report; default evaluations/MODEL."),
    ] = None,
    key_variable: Annotated[
        str | None,
        typer.Option("--key-variable", metavar="NAME", help="Variable with the API key for URL."),
    ] = None,
    prompt_price: Annotated[
        float | None,
        typer.Option("--prompt-price", help="Price of a million prompt tokens at URL."),
    ] = None,
    completion_price: Annotated[
        float | None,
        typer.Option("--completion-price", help="Price of a million completion tokens at URL."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", help="Most concurrent attempts at URL.")
    ] = None,
    profile: ProfileOption = "laptop",
    set_: SetOption = None,
    runs: RunsOption = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Evaluate a model on the held-out questions of a run, or on suites.

    With --suite, any model. Finished attempts are kept in --out, so that the same command resumes
    where it was stopped; results.json, card.json, report.md and report.html are written there.
    """
    if suite is None:
        _refuse_options_of_suites(context)
        _evaluate_on_run(model, run, as_json=as_json)
        return
    given = {
        "key_variable": key_variable,
        "prompt_price": prompt_price,
        "completion_price": completion_price,
        "concurrency": concurrency,
    }
    with resumable("The same command resumes with the unfinished attempts"):
        from espalier.determinism import prepare_environment

        prepare_environment()  # before anything imports torch
        from espalier.orchestration import evaluating

        order = evaluating.EvaluationOrder(
            model=model,
            suites=suite,
            against=against,
            out=out,
            run=run,
            profile=profile,
            overrides=set_ or (),
            runs=runs,
            endpoint={key: value for key, value in given.items() if value is not None},
            command=shlex.join(["espalier", *sys.argv[1:]]),
        )
        results = evaluating.evaluate_on_suites(order, lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(results)
    else:
        typer.echo(evaluating.results_text(results))


_NEED_NO_SUITE = ("model", "run", "as_json")


def _refuse_options_of_suites(context: typer.Context) -> None:
    """Refuse options that a plain evaluation on a run would ignore."""
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in _NEED_NO_SUITE and _is_typed(context, parameter.name)
    ]
    if given:
        raise typer.BadParameter(
            f"{', '.join(given)} without --suite would be ignored; add --suite, which is "
            "`--suite heldout` for the held-out questions of --run"
        )


def _is_typed(context: typer.Context, parameter: str | None) -> bool:
    """Whether an option is on the command line, and not its default."""
    source = context.get_parameter_source(parameter) if parameter else None
    return source is not None and source.name == "COMMANDLINE"


def _evaluate_on_run(policy: str, run: Path | None, *, as_json: bool) -> None:
    if run is None:
        raise typer.BadParameter(
            "name a run with --run RUN to use its held-out questions, or suites with --suite"
        )
    from espalier.orchestration.finished_run import evaluate_policy

    judged = evaluate_policy(run, Path(policy))
    if as_json:
        print_json(judged.figures)
    else:
        typer.echo(judged.table)


@app.command(
    "reward-model",
    epilog=examples(
        "espalier reward-model runs/math --out runs/math-steps",
        "espalier reward-model runs/math --out runs/math-outcome --kind outcome --json",
    ),
)
def reward_model(
    *,
    run: RunArgument,
    out: Annotated[Path, typer.Option("--out", help="Folder of the model.")],
    kind: Annotated[
        RewardModelKind, typer.Option("--kind", help="Score every step, or only the end.")
    ] = RewardModelKind.PROCESS,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a head that scores attempts, on rollouts of a run's warm policy.

    [reward_model] says how many. To train a policy with it, set `reward.process.model` or
    `reward.outcome_model.model` to its folder.
    """
    from espalier.orchestration.reward_models import train_reward_model

    figures = train_reward_model(run, out, kind.value, set_ or [])
    if as_json:
        print_json({"model": str(out), "kind": kind.value, **figures})
        return
    typer.echo(
        f"wrote {out}: AUC {figures['auc']:.3f}, agrees with the rule on "
        f"{100 * figures['agreement']:.1f} % of {figures['dev_attempts']:.0f} dev attempts, of "
        f"which {100 * figures['dev_right_share']:.1f} % are right"
    )


@app.command(epilog=examples("espalier report runs/demo"))
def report(*, run: RunArgument) -> None:
    """Write report.html and summary.json of a run again, also of one that stopped half-way.

    report.html is written by espalier-agents-ui, and is what `espalier ui --export` writes.
    """
    from espalier.reporting import INSTALLS, write_report, write_summary

    write_summary(run, None)
    report = write_report(run)
    if report is None:
        typer.echo(f"wrote {run / 'summary.json'} alone: {INSTALLS}", err=True)
    else:
        typer.echo(str(report))


@app.command(
    epilog=examples(
        "espalier chat runs/demo",
        "espalier chat runs/demo --question 'what is the currency of the country of Lyon?'",
        "espalier chat runs/demo --policy runs/demo/warm_policy/policy",
        "espalier chat runs/shop --task heldout-955dfb5b152b",
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
        str | None, typer.Option("--question", help="Ask this, print the episode, and exit.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task", metavar="ID", help="Play this task of the run, print its reward, and exit."
        ),
    ] = None,
) -> None:
    """Talk to a policy and see what it does.

    An empty line or the end of input exits. A task with a state of its own, such as what a customer
    wants to buy, is played by --task; ids are in RUN/accepted/tasks.
    """
    from espalier.orchestration.finished_run import Conversation, transcript

    if question is not None and task is not None:
        raise typer.BadParameter("give --question or --task, not both")
    if question is not None and not question.strip():
        raise typer.BadParameter("--question is empty: write what to ask, or leave it out to talk")
    with Conversation.opened(run, policy) as conversation:
        if task is not None:
            played = conversation.task(task)
            typer.echo(transcript(conversation.play(played), played))
            return
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


KUBEFLOW_VARIABLE = "KFP_POD_NAME"
"""Set in every container of Kubeflow Pipelines, by its compiler."""


@app.command(
    hidden=True,  # pods run it; people rarely do
    epilog=examples(
        "espalier step train --profile smoke --run s3://espalier/runs/r17",
        "espalier step evaluate --profile smoke --run runs/r18 "
        "--input trained_policy=s3://espalier/runs/r17/trained_policy",
    ),
)
def step(
    *,
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="Stage of the chain.")],
    run: Annotated[
        str, typer.Option("--run", help="s3://BUCKET/PREFIX of the run, or its folder.")
    ],
    profile: Annotated[
        str, typer.Option("--profile", help="Name, path of a .toml file, or a whole one as JSON.")
    ] = "laptop",
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="NAME=URI", help="An input from elsewhere than RUN; repeatable."
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", help="URI of the output; default: RUN/NAME.")
    ] = None,
    workspace: Annotated[
        Path, typer.Option("--workspace", help="Folder for artifacts from S3 while the step runs.")
    ] = Path("/s3"),
) -> None:
    """Run one stage on artifacts in S3 or in folders, as its pod on a cluster does.

    AWS_ENDPOINT_URL_S3 is the address of S3; credentials come from AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY or a credentials file. MLFLOW_TRACKING_URI and MLFLOW_RUN_ID name the
    tracked run that the stage belongs to. Nothing runs if the output is current. Prints the content
    digest of the output.

    Exit codes: 1 and 2 if the stage refuses its input; 75 if storage or a server was away, a
    process or node was lost, or something hung; 128 and more for a signal. Under Kubeflow, which
    cannot tell these apart, storage is retried for ten minutes more.
    """
    from espalier.orchestration.step_runner import StepFailed, StepOrder, run_step
    from espalier.records import EspalierError, StorageAwayError, patient, patiently
    from espalier.records.patience import STEP_PATIENCE_S, Patience
    from espalier.steps.profiles import given_profile
    from espalier.steps.refusing import TRY_AGAIN, write_termination_message

    order = StepOrder(
        stage=stage,
        profile=given_profile(profile),
        run_uri=run.rstrip("/"),
        workspace=workspace,
        inputs=dict(_named_uri(text) for text in input_ or ()),
        output=output,
    )

    def say(line: str) -> None:
        typer.echo(line, err=True)

    waits_s = STEP_PATIENCE_S if KUBEFLOW_VARIABLE in os.environ else 0.0
    try:
        with patient(Patience(total_s=waits_s, say=say)):
            manifest = patiently(lambda: run_step(order, say))
    except StepFailed as error:  # the step itself wrote the termination message
        say(f"error: {error}")
        raise typer.Exit(error.exit_code) from error
    except EspalierError as error:
        is_away = isinstance(error, StorageAwayError)
        write_termination_message(f"error: {stage}: {error}", asks_for_another_try=is_away)
        if not is_away:
            raise
        say(f"error: {error}")
        raise typer.Exit(TRY_AGAIN) from error
    typer.echo(manifest.content)


def _named_uri(text: str) -> tuple[str, str]:
    name, separator, uri = text.partition("=")
    if not separator or not name or not uri:
        raise typer.BadParameter(f"{text!r}: write it as NAME=URI")
    return name, uri


@app.command(
    epilog=examples(
        "espalier doctor", "espalier doctor --json", "espalier doctor --profile my/cluster.toml"
    )
)
def doctor(
    *,
    profile: Annotated[
        str | None,
        typer.Option("--profile", help="Check the account of its steps under Kubeflow as well."),
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Folder for runs.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Print what is installed, what is missing, and what to do.

    Exit code 1: `espalier run` would not work. Missing parts that only a cluster needs do not
    count.
    """
    from espalier.orchestration.doctor import examine
    from espalier.steps.profiles import named_profile

    findings = examine(runs, None if profile is None else named_profile(profile))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            remedy = f"  ({finding.remedy})" if finding.remedy else ""
            typer.echo(f"{finding.state:<6}  {finding.name:<{width}}  {finding.found}{remedy}")
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)
