"""Profiles from a name, a path, JSON, or the form of a Kubeflow run."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

import espalier
from espalier.algorithms.presets import PRESETS
from espalier.chain import STAGES
from espalier.config import (
    Profile,
    load_profile,
    named_reference,
    parse_profile,
    parsed_override,
    read_toml_profile,
)
from espalier.records import ProfileError

PipelineT = TypeVar("PipelineT", bound=Callable[..., Any])


def pipelines_dir() -> Path:
    """The folder with `data_to_model.py` and `profiles/`.

    A checkout (the package is in `components/espalier` next to `pipelines/`) uses its own folder,
    so that edited profiles take effect at once; an installed wheel contains a copy.

    Raises:
        ProfileError: neither exists; the installation is broken.
    """
    package = Path(str(resources.files(espalier)))
    checkout = package.parent.parent / "pipelines"
    if package.parent.name == "components" and checkout.is_dir():
        return checkout
    packaged = package / "_pipelines"
    if packaged.is_dir():
        return packaged
    raise ProfileError(
        f"no pipelines for {package}: neither {checkout} nor {packaged} exists. "
        "Install espalier again"
    )


def profile_names() -> list[str]:
    """Names of the profiles that come with espalier."""
    return sorted(path.stem for path in (pipelines_dir() / "profiles").glob("*.toml"))


def profiles_named(pipeline: PipelineT) -> PipelineT:
    """Decorator that fills "{profiles}" in a pipeline's docstring, which kfp shows in the form."""
    *others, last = profile_names()
    documented = pipeline.__doc__ or ""
    pipeline.__doc__ = documented.replace("{profiles}", f"{', '.join(others)} or {last}")
    return pipeline


FORM_KEYS = {
    "knowledge_path": "knowledge.path",
    "base_model": "policy.model",
    "demonstrations": "synthesis.trajectories",
    "heldout_questions": "synthesis.heldout_tasks",
    "algorithm": "training.algorithm.preset",
    "training_steps": "training.steps",
    "tasks_per_step": "training.tasks_per_step",
    "group_size": "training.group_size",
    "learning_rate": "training.optimizer.learning_rate",
}
"""Field of Kubeflow's form -> key of the profile that it sets."""


def named_profile(name: str, overrides: Sequence[str] = ()) -> Profile:
    """The profile with a name in `pipelines/profiles`, or from the TOML file at a path.

    Args:
        name: `laptop`, or `path/to/own.toml` (anything with a slash or a .toml suffix is a path).
        overrides: `section.key=value` each.

    Raises:
        ProfileError: no such profile (the message has the nearest name), or it is invalid.
    """
    return load_profile(profile_path(name), overrides)


def profile_path(name: str) -> Path:
    """The TOML file that `named_profile` reads.

    Raises:
        ProfileError: no profile has the name.
    """
    if "/" in name or name.endswith(".toml"):
        return Path(name)
    known = profile_names()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)};"
        raise ProfileError(f"{name}: no such profile; {hint} a path ends in .toml")
    return pipelines_dir() / "profiles" / f"{name}.toml"


def resolved_profile(
    profile: str, *, seed: int, overrides: str, form: Mapping[str, str] | None = None
) -> Profile:
    """The profile of a Kubeflow run, from the fields of its form.

    A named model without a digest gets that of the copy that `espalier models add` makes.

    Args:
        profile: name of a profile in the image, or the JSON of a whole profile.
        seed: replaces the profile's own.
        overrides: `section.key=value`, several separated by semicolons or line ends.
        form: values of `FORM_KEYS`, which `overrides` take precedence over; an empty value keeps
            the profile's own.

    Raises:
        ProfileError: no such profile, or an invalid profile or value.
    """
    if profile.lstrip().startswith("{"):
        source, tables = Path("profile JSON"), _json_tables(profile)
    else:
        source = profile_path(profile.strip())
        tables = read_toml_profile(source)
    texts = [text.strip() for text in overrides.replace("\n", ";").split(";")]
    changes = [parsed_override(text) for text in texts if text]
    given = {name: text.strip() for name, text in (form or {}).items()}
    changes += [(FORM_KEYS[name], text) for name, text in given.items() if text]
    parsed = parse_profile(tables, [*changes, ("seed", seed)], source)
    named = named_reference(parsed.policy.model)
    if named is None or named.digest:
        return parsed
    changes.append(("policy.model", str(named.as_added)))
    return parse_profile(tables, [*changes, ("seed", seed)], source)


def stated_json(profile: Profile) -> str:
    """The profile's explicit settings as JSON, from which `parsed_profile` makes an equal profile.

    Defaults are left out to keep it short. Argo copies a step's parameters to about ten places of
    the Workflow and compresses it beyond 1 MiB (workflow/packer); Kubeflow's API server then shows
    no more steps of the run (backend/src/common/util/workflow.go reads only uncompressed nodes).
    """
    return profile.model_dump_json(exclude_unset=True)


def _json_tables(text: str) -> dict[str, Any]:
    try:
        tables = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"profile JSON: {error}") from error
    return tables  # it began with a brace, so it is a table


def given_profile(profile: str) -> Profile:
    """The profile from a step's command: a name, a path, or the JSON of a whole profile.

    Raises:
        ProfileError: no such profile, or it is invalid.
    """
    if profile.lstrip().startswith("{"):
        return parsed_profile(profile)
    return named_profile(profile)


def parsed_profile(profile_json: str) -> Profile:
    """Parse the JSON of a profile from `resolve_profile`.

    Raises:
        ProfileError: the JSON is no profile of this release.
    """
    return _parsed(profile_json, extra=None)


def saved_profile(profile_json: str) -> Profile:
    """Parse a profile that a run or a model version has saved as JSON; ignore removed keys.

    Raises:
        ProfileError: the JSON is no profile.
    """
    return _parsed(profile_json, extra="ignore")


def _parsed(profile_json: str, *, extra: Literal["ignore"] | None) -> Profile:
    try:
        return Profile.model_validate_json(profile_json, extra=extra, context={"extra": extra})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "profile"
        raise ProfileError(f"profile JSON: {where}: {first['msg']}") from error


_ALWAYS_SHOWN = ("name", "seed", "environment.name", "knowledge.source")
"""Keys of settings that are always tracked, even at their defaults."""


def changed_settings(profile: Profile) -> dict[str, object]:
    """Dotted key -> value of the settings that differ from the defaults, as a run's parameters.

    The tracking server gets only these of about 270 settings, so that two runs can be compared by
    eye; profile.json has all.
    """
    default = dict(_flat(Profile().model_dump(mode="json")))
    return {
        key: value
        for key, value in _flat(profile.model_dump(mode="json"))
        if key in _ALWAYS_SHOWN or value != default.get(key)
    }


def preset_line(profile: Profile) -> str | None:
    """Settings of the preset outside of [training.algorithm], with the profile's own values noted.

    None where the preset sets none.
    """
    name = profile.training.algorithm.preset
    bare = Profile.model_validate({"training": {"algorithm": {"preset": name}}})
    of_preset, now = (dict(_flat(one.model_dump(mode="json"))) for one in (bare, profile))
    elsewhere = PRESETS[name].elsewhere
    kept = [
        f"{key} = {json.dumps(value)}"
        for key, value in elsewhere.items()
        if now[key] == of_preset[key]
    ]
    stated = [
        f"the profile's own {key} = {json.dumps(now[key])} in place of {json.dumps(value)}"
        for key, value in elsewhere.items()
        if now[key] != of_preset[key]
    ]
    return f'preset "{name}" sets {", ".join([*kept, *stated])}' if elsewhere else None


def settings_markdown(profile: Profile) -> str:
    """`changed_settings` with a line per key, for Kubeflow's UI.

    The UI itself shows a parameter's text, such as a profile in JSON, as one escaped line.
    """
    keys = [f"    {key} = {json.dumps(value)}" for key, value in changed_settings(profile).items()]
    explanation = "Differences from the defaults, from the profile, its presets and the run form."
    return "\n".join(("# Settings of this run", "", explanation, "", *keys, ""))


def stage_settings(profile: Profile, stage: str) -> dict[str, object]:
    """`changed_settings` that `stage` reads, and the digest of all settings that it reads."""
    sections = ("seed", *STAGES[stage].sections)
    read = {
        key: value
        for key, value in changed_settings(profile).items()
        if any(key == section or key.startswith(f"{section}.") for section in sections)
    }
    return {**read, "config_digest": STAGES[stage].digest(profile)}


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
