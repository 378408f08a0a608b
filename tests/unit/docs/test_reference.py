"""The reference has every key and every command, each with its description."""

import tomllib

import pytest
import typer
from pydantic import BaseModel, Field

from docs import reference
from espalier.algorithms.presets import PRESETS
from espalier.cli import command_line
from espalier.config import Profile


@pytest.fixture(scope="module")
def keys():
    return reference.profile_keys()


@pytest.fixture(scope="module")
def commands():
    return reference.commands()


def section(text, title):
    return text.partition(f"# {title}\n")[2].partition("\n#")[0]


def rows(text):
    return {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}


def test_every_section_of_a_profile_has_a_heading(keys):
    for name in Profile.model_fields.keys() - {"name", "seed", "threads"}:
        assert f"## [{name}]\n" in keys


def test_a_key_has_its_type_bounds_default_and_description(keys):
    row = rows(section(keys, "[training]"))["group_size"]
    assert row == (
        "| `group_size` | integer >= 1 | `16` | Trajectories of each task: G. Credit comes from "
        "their differences; of one, from a critic or a prediction (presets `ppo`, `spo`). |"
    )
    assert "`seed` | integer >= 0, < 2^63 | `0`" in keys
    assert "path or none | unset" in rows(section(keys, "[policy]"))["model"]


def test_members_of_a_union_are_listed_under_their_name(keys):
    assert 'training.algorithm.advantage: name = "dr_grpo"\n' in keys
    assert 'environment.sandbox: backend = "podman"\n' in keys
    assert 'self_play: name = "absolute_zero"\n' in keys
    assert "A list of rules, chosen by `name`." in section(keys, "[training.algorithm.filters]")
    assert 'Default: `name = "off"`.' in section(keys, "[self_play]")


def test_no_key_of_the_repositorys_profiles_is_missing(keys):
    root = reference.Path(reference.__file__).parents[1]
    for path in (root / "pipelines" / "profiles").glob("*.toml"):
        for name, table in tomllib.loads(path.read_text("utf-8")).items():
            if isinstance(table, dict):
                plain = {key for key, value in table.items() if not isinstance(value, dict)}
                if name != "environment":
                    assert plain <= rows(section(keys, f"[{name}]")).keys(), path


def test_a_key_without_a_description_is_refused_by_name(monkeypatch):
    class Bare(BaseModel):
        told: int = Field(default=1, description="Says something.")
        untold: int = 2

    with pytest.raises(LookupError, match=r"Bare\.untold has no description"):
        reference.table_of(Bare, ("bare",))
    assert "Says something." in reference.markdown_table(("a",), [("Says something.",)])


def test_descriptions_of_base_classes_are_inherited():
    class Parent(BaseModel):
        one: int = 1
        """The first,
        on two lines."""

    class Child(Parent):
        one: int = 2
        two: int = 3
        """The second."""

    assert reference.attribute_docstrings(Child) == {
        "one": "The first, on two lines.",
        "two": "The second.",
    }


def test_every_preset_is_listed_with_its_source():
    listed = rows(reference.presets())
    assert listed.keys() == PRESETS.keys()
    assert "arXiv:2402.03300" in listed["grpo"]


def test_every_command_and_option_is_listed(commands):
    def walk(command, path):
        subcommands = getattr(command, "commands", {})
        for name, one in subcommands.items():
            walk(one, (*path, name))
        if not subcommands:
            told = section(commands, " ".join(path))
            assert told, path
            for parameter in command.params:
                assert f"`{' '.join(parameter.opts)}`" in told or parameter.metavar in told

    walk(typer.main.get_command(command_line()), ("espalier",))


def test_markup_characters_of_a_description_are_shown():
    assert reference.escaped("a*b `c*d` [e] <f>") == r"a\*b `c*d` \[e] \<f>"
