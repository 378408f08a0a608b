"""The commands `espalier environments check` and `add`."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from espalier.config import Profile
from espalier.config.environment import FamilyClass, family_class, family_names
from espalier.environments import family_of
from espalier.environments.checking import check_family
from espalier.environments.mixins import InstallsPackages, TeachesReading
from espalier.records import NullTracker, ProfileError
from espalier.stages import ingest
from espalier.steps.profiles import named_profile, profile_names

_LEAST_TASKS = 20
_GIVEN_MODEL = "smollm2"
"""What a family without a teacher is trained from, unless its profile names another model."""


def check_environment(
    name: str, settings: Sequence[str], *, count: int, benchmark: Path | None
) -> dict[str, Any]:
    """Check the family of a profile, or a family with its default settings.

    Returns:
        `family`, and the fields of the check's findings.

    Raises:
        ProfileError: there is no profile or family with the name.
    """
    profile = _profile(name, settings)
    num_tasks = max(count, _LEAST_TASKS)
    synthesis = profile.synthesis.model_copy(
        update={"train_tasks": num_tasks, "dev_tasks": num_tasks, "heldout_tasks": num_tasks}
    )
    smaller = profile.model_copy(update={"synthesis": synthesis})
    with tempfile.TemporaryDirectory() as folder:
        knowledge = Path(folder) / "knowledge"
        ingest.run(smaller, {}, knowledge, NullTracker())
        found = check_family(family_of(smaller), knowledge, count, benchmark)
    fields = dataclasses.asdict(found)
    return {
        "family": profile.environment.name,
        **{
            key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()
        },
    }


def _profile(name: str, settings: Sequence[str]) -> Profile:
    is_profile = name.endswith(".toml") or name in profile_names()
    if is_profile or not (name in family_names() or ":" in name):
        return named_profile(name, settings)
    if settings:
        raise ProfileError(f"--set needs a profile; {name} is a family with default settings")
    try:
        policy = _policy_of(cast("type[object]", family_class(name)))
        return Profile.model_validate({"environment": {"name": name}, "policy": policy})
    except ValidationError as error:
        keys = _required_keys(family_class(name))
        hint = (
            f"; it has keys without defaults ({', '.join(keys)}): check a profile that sets them, "
            f"which `espalier environments add {name}` begins"
        )
        raise ProfileError(f"{name}: {error.errors()[0]['msg']}{hint if keys else ''}") from error
    except ValueError as error:
        raise ProfileError(str(error)) from error


def _policy_of(family: type[object]) -> dict[str, str]:
    """The section `policy`: a named model, if the tiny policy has nothing to read from."""
    return {} if issubclass(family, TeachesReading) else {"model": _GIVEN_MODEL}


def _required_keys(family: FamilyClass) -> list[str]:
    return [key for key, field in family.config.model_fields.items() if field.is_required()]


def add_environment(name: str, out: Path | None) -> str:
    """Install a built-in family's packages, or write a profile that names a class.

    Returns:
        A message about what was done.

    Raises:
        ProfileError: there is nothing to add, or the file exists already.
    """
    try:
        found = family_class(name)
    except ValueError as error:
        raise ProfileError(str(error)) from error
    own = cast("type[object]", found)
    if issubclass(own, InstallsPackages):
        return own.install_packages()
    if name in family_names():
        raise ProfileError(f"{name} is installed, and needs nothing of its own")
    path = out or Path(f"{found.name}.toml")
    text = f'name = "{found.name}"\n\n[environment]\nname = "{name}"\n'
    text += "".join(f"# {key} = ...  (required)\n" for key in _required_keys(found))
    for key, value in _policy_of(own).items():
        text += f'\n[policy]\n{key} = "{value}"\n'
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ProfileError(
            f"{path}: cannot be written ({error.strerror}); give another --out"
        ) from error
    return f"wrote {path}; check it with `espalier environments check {path}`"
