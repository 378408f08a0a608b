"""compile; submit; schedule create, list, pause, resume, delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from espalier.cli.app import JsonOption, ProfileOption, SetOption, app, examples, print_json
from espalier.cli.kubeflow_runs import connected, details, leave, watched

if TYPE_CHECKING:
    from espalier.cluster.kubeflow import KubeflowApi
    from espalier.cluster.schedules import Schedule
    from espalier.config import ImagesConfig, ModelReference, Profile

schedule = typer.Typer(
    name="schedule",
    help="Runs that Kubeflow starts on a schedule.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(schedule)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name or id of the schedule.")]


@app.command(
    name="compile",
    epilog=examples(
        "espalier compile --out pipeline.yaml",
        "espalier compile --image registry.example/espalier:1 --profile smoke --out smoke.yaml",
    ),
)
def compile_(
    *,
    out: Annotated[Path, typer.Option("--out", help="The .yaml file to write.")] = Path(
        "pipeline.yaml"
    ),
    profile: ProfileOption = "laptop",
    set_: SetOption = None,
    image: Annotated[
        str | None, typer.Option("--image", help="Container image of every step.")
    ] = None,
) -> None:
    """Write the pipeline in Kubeflow's format.

    --profile and --set become the defaults of Kubeflow's run form. The section [kubernetes] of the
    profile is compiled in: images, resources, GPUs, nodes, volumes, secrets and labels of the pods.
    """
    from espalier.config import ImagesConfig
    from espalier.orchestration.pipelines import compile_pipeline, form_defaults, pinned_model
    from espalier.steps.profiles import named_profile

    resolved = named_profile(profile, set_ or ())
    settings = resolved.kubernetes
    defaults = form_defaults(profile, set_ or ())
    compile_pipeline(out, defaults, settings, image)
    _note_model(pinned_model(resolved))
    _note_files(resolved)
    _note_tags(settings.images if image is None else ImagesConfig(cpu=image, train=image))
    typer.echo(f"wrote {out}")


@app.command(
    epilog=examples(
        "espalier submit --profile laptop",
        "espalier submit --profile my/cluster.toml --set seed=3 --name r18 --json",
        "espalier submit --profile my/cluster.toml --name r18 --wait",
        "KF_PIPELINES_ENDPOINT=http://localhost:8888 espalier submit --profile smoke",
    )
)
def submit(
    *,
    profile: ProfileOption = "laptop",
    set_: SetOption = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run; default: the profile's.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the run's end; exit code 1 if it fails.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start one run on Kubeflow Pipelines and print its id.

    The pipeline is compiled with the profile's section [kubernetes] and uploaded once, as a version
    named after its content. Server and token: kubernetes.kubeflow.endpoint and .token_file, or
    KF_PIPELINES_ENDPOINT and KF_PIPELINES_TOKEN. The JSON's url is the run's page in Kubeflow, or
    null if its address is unknown: kubernetes.kubeflow.ui or KF_PIPELINES_UI_ENDPOINT.

    With --wait, each step's start and end is a line on stderr. Ctrl-C does not stop the run.
    """
    from espalier.cluster.kubeflow import start_run
    from espalier.cluster.kubeflow_runs import explained
    from espalier.orchestration.pipelines import compile_profile, pinned_model

    with connected(profile, set_) as (api, resolved):
        _note_tags(resolved.kubernetes.images)
        _note_model(pinned_model(resolved))
        _note_files(resolved)
        compile_to = partial(compile_profile, profile, set_ or ())
        run_id = start_run(api, name or resolved.name, compile_to)
        url = api.run_page(run_id) if as_json else None
        if not as_json:
            typer.echo(run_id)
        elif wait:
            typer.echo(run_id, err=True)
        else:
            print_json({"run_id": run_id, "url": url})
        if wait:
            ended = watched(api, run_id, profile, set_)
            if as_json:
                ended = explained(api, ended)
                print_json(details(ended, url))
            leave(api, ended)


@schedule.command(
    epilog=examples(
        "espalier schedule create nightly --cron '0 0 3 * * *' --profile laptop",
        "espalier schedule create weekly --cron '0 30 4 * * MON' --profile my/cluster.toml "
        "--start 2026-03-02T00:00:00Z --end 2026-09-01T00:00:00Z",
        "espalier schedule create nightly --cron '0 0 3 * * *' --timezone Asia/Tokyo",
    )
)
def create(  # noqa: PLR0913 (options of a command)
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Unused name for the schedule.")],
    cron: Annotated[
        str, typer.Option("--cron", help="Six fields: second minute hour day month weekday.")
    ],
    profile: ProfileOption = "laptop",
    set_: SetOption = None,
    start: Annotated[str | None, typer.Option("--start", help="Earliest run; ISO 8601.")] = None,
    end: Annotated[str | None, typer.Option("--end", help="Latest run; ISO 8601.")] = None,
    timezone: Annotated[
        str | None,
        typer.Option(
            "--timezone", help="Time zone of --cron, such as Asia/Tokyo; default: Kubeflow's own."
        ),
    ] = None,
) -> None:
    """Create a schedule and print its id.

    It has one run at a time, and none for times before it was created, even if --start has passed.
    Times that pass while a run of it is going on, or while Kubeflow is down, are made up for
    afterwards by a single run.

    Kubeflow reads all schedules in one time zone, which kubernetes.kubeflow.timezone has to name if
    it is not UTC. --cron is converted to it from --timezone; where daylight saving time makes this
    impossible, it is refused.
    """
    from espalier.cluster.schedules import When, times
    from espalier.cluster.schedules import create as created
    from espalier.orchestration.pipelines import compile_profile
    from espalier.steps.profiles import named_profile

    kubernetes = named_profile(profile, set_ or ()).kubernetes
    when = When(cron, start, end, timezone)
    trigger = times(when, kubernetes.kubeflow.timezone, datetime.now(UTC))
    with connected(profile, set_) as (api, _):
        _note_tags(kubernetes.images)
        compile_to = partial(compile_profile, profile, set_ or ())
        schedule_id = created(api, name, trigger, compile_to)
        _note(trigger.notes)
        typer.echo(schedule_id)


@schedule.command(
    name="list", epilog=examples("espalier schedule list", "espalier schedule list --json")
)
def list_(
    *, profile: ProfileOption = "laptop", set_: SetOption = None, as_json: JsonOption = False
) -> None:
    """List the schedules.

    The time zone shown is kubernetes.kubeflow.timezone, because Kubeflow does not report its own.
    """
    from espalier.cluster.schedules import schedules
    from espalier.orchestration.results import aligned

    with connected(profile, set_) as (api, resolved):
        found = schedules(api)
    timezone = resolved.kubernetes.kubeflow.timezone
    if as_json:
        print_json(
            [
                {
                    "id": one.id, "name": one.name, "status": one.status, "cron": one.cron,
                    "timezone": timezone, "parameters": one.parameters,
                }
                for one in found
            ]
        )  # fmt: skip
    elif found:
        rows = [
            {
                "name": one.name, "status": one.status, "cron": one.cron, "timezone": timezone,
                "id": one.id,
            }
            for one in found
        ]  # fmt: skip
        typer.echo(aligned(rows))


@schedule.command(epilog=examples("espalier schedule pause nightly"))
def pause(*, name: NameArgument, profile: ProfileOption = "laptop", set_: SetOption = None) -> None:
    """Start no more runs; a running one continues."""
    from espalier.cluster import schedules

    _changed(schedules.pause, name, profile, set_ or ())


@schedule.command(epilog=examples("espalier schedule resume nightly"))
def resume(
    *, name: NameArgument, profile: ProfileOption = "laptop", set_: SetOption = None
) -> None:
    """Start runs again, from the next scheduled time on, and print the schedule's new id.

    Kubeflow would at once start a run for the latest time that a paused schedule missed. Therefore
    an equal schedule is created, and the paused one deleted; its runs stay.
    """
    from espalier.cluster import schedules

    with connected(profile, set_) as (api, _):
        resumed = schedules.resume(api, name, datetime.now(UTC))
        _note(resumed.notes)
        typer.echo(resumed.id)


@schedule.command(epilog=examples("espalier schedule delete nightly"))
def delete(
    *, name: NameArgument, profile: ProfileOption = "laptop", set_: SetOption = None
) -> None:
    """Delete the schedule; its runs stay, and continue."""
    from espalier.cluster import schedules

    _changed(schedules.delete, name, profile, set_ or ())


def _changed(
    change: Callable[[KubeflowApi, str], Schedule],
    name: str,
    profile: str,
    overrides: Sequence[str],
) -> None:
    with connected(profile, overrides) as (api, _):
        typer.echo(change(api, name).id)


def _note(notes: Sequence[str]) -> None:
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def _note_model(reference: ModelReference | None) -> None:
    """Print to stderr from where pods fetch a named model."""
    if reference is not None:
        push = f"espalier models push {reference.model.name} --to ADDRESS"
        _note(
            [
                f"pods fetch the model {reference} from ESPALIER_ARTIFACTS/models; "
                f"`{push}` puts it there, once"
            ]
        )


def _note_files(profile: Profile) -> None:
    """Print to stderr which of the user's own files and folders the pods read."""
    from espalier.chain import CHAIN
    from espalier.config import named_reference

    read = {key: path for stage in CHAIN for key, path in stage.external_paths(profile).items()}
    if named_reference(profile.policy.model) is not None:
        del read["policy.model"]
    _note(
        [
            f"pods read {key} = {path}; put it into the image or on a volume, under that path "
            "(docs/cluster.md, Files of your own)"
            for key, path in read.items()
        ]
    )


def _note_tags(images: ImagesConfig) -> None:
    """Print to stderr which images have no digest."""
    for image in images.by_tag():
        typer.echo(
            f"note: {image} has a tag and no digest, so its content may change. Name it as "
            "IMAGE@sha256:... (docs/cluster.md says how to read its digest)",
            err=True,
        )
