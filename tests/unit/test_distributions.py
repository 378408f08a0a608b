"""The distributions: one version, every package in its wheel, every environment found."""

import tomllib
from pathlib import Path

import pytest

import espalier
from espalier.config.environment import installed_families
from espalier.named_classes import OWN_PACKAGES

ROOT = Path(__file__).parents[2]
COMPONENTS = ROOT / "components"
CORE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BESIDE = {
    path.parent.name: tomllib.loads(path.read_text())
    for path in COMPONENTS.glob("*/pyproject.toml")
}


def test_all_have_one_version():
    assert CORE["version"] == espalier.__version__
    for settings in BESIDE.values():
        project = settings["project"]
        assert project["version"] == espalier.__version__
        assert f"{CORE['name']}=={espalier.__version__}" in project["dependencies"]


def test_own_packages_are_those_of_the_distributions():
    assert set(OWN_PACKAGES) == {"espalier", *BESIDE}


@pytest.mark.parametrize("name", BESIDE)
def test_a_wheel_holds_every_package_of_its_folder(name):
    packages = {
        ".".join(path.parent.relative_to(COMPONENTS).parts)
        for path in (COMPONENTS / name).rglob("__init__.py")
    }
    assert set(BESIDE[name]["tool"]["setuptools"]["packages"]) == packages


def test_every_entry_point_is_an_installed_environment():
    named = {
        point
        for project in (CORE, *(settings["project"] for settings in BESIDE.values()))
        for point in project["entry-points"].get("espalier.environments", {}).items()
    }
    assert named <= {(family.name, family.where) for family in installed_families()}
