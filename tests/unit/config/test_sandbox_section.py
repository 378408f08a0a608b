"""Where programs run: one section a backend, and this machine where none is named."""

import pytest
from pydantic import ValidationError

from espalier.config import LocalSandboxConfig, PodmanSandboxConfig, Profile


def sandbox_of(**section):
    tables = {"environment": {"name": "python_math", "sandbox": section}}
    return Profile.model_validate(tables).environment.sandbox


def test_a_section_without_a_backend_is_local():
    assert sandbox_of(packages=[], size=2) == LocalSandboxConfig(packages=(), size=2)


def test_each_backend_has_its_own_keys():
    named = sandbox_of(backend="podman", image="localhost/python:1")
    assert named == PodmanSandboxConfig(image="localhost/python:1")
    with pytest.raises(ValidationError, match="packages"):
        sandbox_of(backend="podman", image="localhost/python:1", packages=[])
    with pytest.raises(ValidationError, match="image"):
        sandbox_of(backend="kubernetes")
