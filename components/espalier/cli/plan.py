"""plan: the resources that a run will need, before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.app import (
    JsonOption,
    ProfileOption,
    SetOption,
    app,
    examples,
    print_json,
    resumable,
)


@app.command(
    epilog=examples(
        "espalier plan --profile laptop",
        "espalier plan --profile my/own.toml --set training.steps=500 --probe",
        "espalier plan --profile sql --memory 2GiB --hours 0.5",
        "espalier plan --prices prices.toml --budget 5 --json",
    )
)
def plan(  # noqa: PLR0913 (the options of a command)
    *,
    profile: ProfileOption = "laptop",
    set_: SetOption = None,
    runs: Annotated[
        Path, typer.Option("--runs", help="Folder of runs; stores the measurements of --probe.")
    ] = Path("runs"),
    probe: Annotated[
        bool,
        typer.Option("--probe", help="First run all stages for about a minute, to measure."),
    ] = False,
    prices: Annotated[
        Path | None,
        typer.Option(
            "--prices",
            metavar="FILE",
            help="TOML file with prices per hour: machine_hour, gpu_hour, cpu_core_hour, "
            "memory_gib_hour, and currency.",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="AMOUNT",
            help="Memory limit of the run, such as 16GiB; default: this machine's.",
        ),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            "--gpu-memory",
            metavar="AMOUNT",
            help="Plan for a GPU with this memory, such as 80GiB; default: this machine's, if any.",
        ),
    ] = None,
    disk: Annotated[
        str | None,
        typer.Option(
            "--disk",
            metavar="AMOUNT",
            help="Disk limit of the run, such as 50GiB; default: free space at --runs.",
        ),
    ] = None,
    hours: Annotated[
        float | None, typer.Option("--hours", help="Time limit of the run, hours.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", help="Cost limit of the run, by --prices.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate what a run will need before it runs: memory, time, disk, GPU-hours, money.

    Nothing is run or written without --probe, which measures the length of episodes and the speed
    of this model on this machine, for later plans too. The output names what is estimated without
    a measurement. A limit that is exceeded is listed with the profile keys that it depends on most.
    Exit code 1: the run does not fit.
    """
    from espalier import planning
    from espalier.steps.profiles import named_profile, preset_line

    if budget is not None and prices is None:
        raise typer.BadParameter("--budget needs --prices; give both")
    for name, value in {"--hours": hours, "--budget": budget}.items():
        if value is not None and not value > 0:
            raise typer.BadParameter(f"{name} {value:g} must be above 0")
    chosen = named_profile(profile, set_ or ())
    if line := preset_line(chosen):
        typer.echo(line, err=True)
    limits = planning.Limits(
        memory_mib=None if memory is None else planning.mebibytes(memory),
        accelerator_mib=None if gpu_memory is None else planning.mebibytes(gpu_memory),
        disk_mib=None if disk is None else planning.mebibytes(disk),
        hours=hours,
        money=budget,
    )
    table = None if prices is None else planning.read_prices(prices)
    machine = planning.this_machine(runs)
    if probe:
        with resumable("The same command repeats the probe"):
            planning.run_probe(chosen, machine, runs, lambda line: typer.echo(line, err=True))
    order = planning.PlanOrder(
        profile=chosen,
        machine=machine,
        limits=limits,
        measured=planning.read_probe(chosen, machine, runs),
        prices=table,
    )
    made = planning.make_plan(order)
    if as_json:
        print_json(planning.plan_json(made))
    else:
        typer.echo(planning.plan_text(made))
    if made.faults:
        raise typer.Exit(1)
