"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ProfileOption = Annotated[
    str, typer.Option("--profile", help="Name under pipelines/profiles, or path of a .toml file.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="Change one value of the profile; repeatable."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder that `espalier run --out` filled.")
]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="RUN",
        help="Folder of the run that made the version; found through MLflow where it is not given.",
    ),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]", help="Registered model; default: that of the run or profile."
    ),
]
RunsOption = Annotated[
    Path,
    typer.Option(
        "--runs", help="Where runs and their mlflow.db are; not used with MLFLOW_TRACKING_URI."
    ),
]
