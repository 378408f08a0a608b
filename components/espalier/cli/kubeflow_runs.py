"""runs list, show, stop, retry; and the following of a run, for `submit --wait` too."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from espalier.cli.app import JsonOption, ProfileOption, SetOption, app, examples, print_json
from espalier.records import ClusterError

if TYPE_CHECKING:
    from datetime import datetime

    from espalier.cluster.kubeflow import KubeflowApi
    from espalier.cluster.kubeflow_runs import Run, Step
    from espalier.config import Profile

runs = typer.Typer(
    name="runs",
    help="Runs on Kubeflow Pipelines.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(runs)

WhichArgument = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run, or its id.")]

INTERRUPTED = 130
"""A shell's exit code for a command that Ctrl-C ended."""
_LOG_LINES = 30
_NAME_WIDTH = 20


@contextmanager
def connected(
    profile: str, overrides: Sequence[str] | None
) -> Iterator[tuple[KubeflowApi, Profile]]:
    """Read the profile of that name or file, and yield a client of its Kubeflow and the profile.

    Raises:
        ClusterError: the profile names no Kubeflow, or it cannot be reached.
    """
    from espalier.cluster.kubeflow import KubeflowApi
    from espalier.steps.profiles import named_profile

    resolved = named_profile(profile, overrides or ())
    with KubeflowApi(resolved.kubernetes.kubeflow, os.environ) as api:
        yield api, resolved


@runs.command(
    name="list", epilog=examples("espalier runs list", "espalier runs list --limit 100 --json")
)
def list_(
    *,
    profile: ProfileOption = "laptop",
    set_: SetOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most runs to list.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the runs, newest first; archived ones are left out."""
    from espalier.cluster import kubeflow_runs
    from espalier.orchestration.results import aligned

    with connected(profile, set_) as (api, _):
        found = kubeflow_runs.runs(api, limit)
    if as_json:
        print_json([_summary(run) for run in found])
    elif found:
        rows = [
            {
                "name": run.name,
                "state": run.state,
                "created": _local(run.created),
                "duration": _duration(run.seconds),
                "id": run.id,
            }
            for run in found
        ]
        typer.echo(aligned(rows))


@runs.command(
    epilog=examples(
        "espalier runs show r18",
        "espalier runs show 5b0c7a3e-2d1f-4a57-9a3b-8f4f6f0f2c11 --follow",
        "espalier runs show r18 --json",
    )
)
def show(
    *,
    run: WhichArgument,
    profile: ProfileOption = "laptop",
    set_: SetOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for the run's end; exit code 1 if it fails.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a run's parameters, and its steps so far with states, durations and messages."""
    from espalier.cluster import kubeflow_runs

    with connected(profile, set_) as (api, _):
        found = kubeflow_runs.run_named(api, run)
        if follow and not found.is_over:
            found = watched(api, found.id, profile, set_)
        found = kubeflow_runs.explained(api, found)
        url = api.run_page(found.id)
        if as_json:
            print_json(details(found, url))
        else:
            typer.echo(_shown(found, url))
        if follow:
            leave(api, found)


@runs.command(epilog=examples("espalier runs stop r18"))
def stop(*, run: WhichArgument, profile: ProfileOption = "laptop", set_: SetOption = None) -> None:
    """Stop a run; Kubeflow counts it as failed, and `retry` continues it."""
    from espalier.cluster import kubeflow_runs

    with connected(profile, set_) as (api, _):
        typer.echo(kubeflow_runs.stop(api, run).id)


@runs.command(epilog=examples("espalier runs retry r18", "espalier runs show r18 --follow"))
def retry(*, run: WhichArgument, profile: ProfileOption = "laptop", set_: SetOption = None) -> None:
    """Run a failed run's unsuccessful steps again; the others keep their results."""
    from espalier.cluster import kubeflow_runs

    with connected(profile, set_) as (api, _):
        typer.echo(kubeflow_runs.retry(api, run).id)


def watched(api: KubeflowApi, run_id: str, profile: str, overrides: Sequence[str] | None) -> Run:
    """Wait for a run's end; print its page, and a line per step that starts or ends, to stderr.

    Ctrl-C ends the waiting with exit code 130, and not the run. If waiting ends early, the message
    says how to follow the run again.
    """
    from espalier.cluster.kubeflow_runs import follow

    given = ["--profile", profile] if profile != "laptop" else []
    given += [part for text in overrides or () for part in ("--set", text)]
    again = shlex.join(["espalier", "runs", "show", run_id, "--follow", *given])
    if page := api.run_page(run_id):
        typer.echo(page, err=True)
    try:
        return follow(api, run_id, _report, _report_silence, time.sleep)
    except KeyboardInterrupt:
        typer.echo(f"the run continues. Follow it again: {again}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except ClusterError as error:
        raise ClusterError(
            f"{error}. The run itself continues; follow it again: {again}"
        ) from error


def leave(api: KubeflowApi, run: Run) -> None:
    """Print to stderr how a run ended, and exit with 1 unless it succeeded."""
    from espalier.cluster.kubeflow_runs import SUCCEEDED, explained

    took = _duration(run.seconds)
    if run.state == SUCCEEDED:
        typer.echo(f"{run.name} succeeded after {took}", err=True)
        return
    run = explained(api, run)
    how = "was stopped" if run.was_stopped else run.state.lower()
    typer.echo(f"{run.name} {how} after {took}", err=True)
    if (failed := run.failed_step) is not None:
        attempts = f", {failed.attempts} attempts" if failed.attempts > 1 else ""
        message = failed.message or "Kubeflow has no message"
        typer.echo(f"step {failed.name}{attempts}: {message}", err=True)
        for line in _log_lines(api, run, failed):
            typer.echo(line, err=True)
    if page := api.run_page(run.id):
        typer.echo(page, err=True)
    raise typer.Exit(1)


def details(run: Run, url: str | None) -> dict[str, Any]:
    """A run as JSON for scripts."""
    return _summary(run) | {
        "url": url,
        "parameters": run.parameters,
        "steps": [
            {
                "name": step.name,
                "state": step.state,
                "started": step.started and step.started.isoformat(),
                "seconds": step.seconds,
                "attempts": step.attempts or None,
                "message": step.message or None,
                "pod": step.pod or None,
            }
            for step in run.steps
        ],
    }


def _summary(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.id,
        "name": run.name,
        "state": run.state,
        "created": run.created and run.created.isoformat(),
        "seconds": run.seconds,
    }


def _shown(run: Run, url: str | None) -> str:
    created = f", created {_local(run.created)}" if run.created else ""
    took = f", {_duration(run.seconds)}" if run.seconds is not None else ""
    lines = [f"{run.name}  {run.id}", f"{run.state}{created}{took}", *([url] if url else []), ""]
    names = max((len(name) for name in run.parameters), default=0)
    lines += [f"{name:<{names}}  {value}" for name, value in run.parameters.items()]
    lines += [""] if run.parameters and run.steps else []
    for step in run.steps:
        figures = f"{step.name:<{_NAME_WIDTH}}  {step.state:<9}  {_duration(step.seconds):>12}"
        lines.append(f"{figures}  {step.message}".rstrip())
    return "\n".join(lines).rstrip()


def _report(step: Step) -> None:
    at = step.ended or step.started
    clock = at.astimezone().strftime("%H:%M:%S") if at else " " * 8
    state = "started" if step.ended is None else step.state.lower()
    took = f" after {_duration(step.seconds)}" if step.seconds is not None else ""
    typer.echo(f"{clock}  {step.name:<{_NAME_WIDTH}}  {state}{took}", err=True)


def _report_silence(error: ClusterError) -> None:
    typer.echo(f"waiting for the server, while the run continues: {error}", err=True)


def _log_lines(api: KubeflowApi, run: Run, step: Step) -> list[str]:
    from espalier.cluster.kubeflow_runs import log_end

    try:
        lines = log_end(api, run, step, _LOG_LINES)
    except ClusterError as error:
        return [f"no log: {error}"]
    return [f"the last lines of its log ({step.pod}):", *(f"  {line}" for line in lines)]


def _local(moment: datetime | None) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M") if moment else ""


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
