"""Where programs run: one section a backend, and this machine where none is named."""

import pytest
from pydantic import ValidationError

from espalier.config import LocalSandboxConfig, PodmanSandboxConfig, Profile


def sandbox_of(**section):
    tables = {"environment": {"name": "python_math", "sandbox": section}}
    return Profile.model_validate(tables).environment.sandbox


def test_each_backend_has_its_own_keys():
    assert sandbox_of(packages=[], size=2) == LocalSandboxConfig(packages=(), size=2)
    named = sandbox_of(backend="podman", image="localhost/python:1")
    assert named == PodmanSandboxConfig(image="localhost/python:1")
    with pytest.raises(ValidationError, match="packages"):
        sandbox_of(backend="podman", image="localhost/python:1", packages=[])
    with pytest.raises(ValidationError, match="image"):
        sandbox_of(backend="kubernetes")


@pytest.mark.parametrize("backend", ["podman", "kubernetes"])
@pytest.mark.parametrize("image", ["python:latest", "localhost:5000/python", "a@sha256:7", ""])
def test_an_image_that_may_be_another_tomorrow_is_refused(backend, image):
    with pytest.raises(ValidationError, match="image"):
        sandbox_of(backend=backend, image=image)
    by_digest = f"localhost:5000/python@sha256:{64 * 'a'}"
    assert sandbox_of(backend=backend, image=by_digest).image == by_digest
