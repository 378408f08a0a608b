"""The core's wheel: the library, sandboxd, and pipeline definitions and profiles as data."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages("components", include=["espalier", "espalier.*", "sandboxd*"]),
        "espalier._pipelines",
    ],
    package_dir={"": "components", "espalier._pipelines": "pipelines"},
    package_data={
        "espalier": ["py.typed"],
        "espalier._pipelines": ["profiles/*.toml"],
        "espalier.reporting": ["templates/*.jinja"],
        "espalier.validation": ["*.jinja"],
    },
)
