"""The list of an image's contents, against what a program inside the image finds."""

import hashlib
import json

import pytest
from packageurl import PackageURL

from tests.images.conftest import BUILT, FOLDER, podman, run

LABEL = "dev.espalier.contents.sha256"
_FIND = """
import json, os
from importlib.metadata import distributions
found = []
for folder, folders, _ in os.walk("/"):
    if folder.startswith(("/proc", "/sys", "/dev")):
        folders.clear()
    elif folder.endswith(("site-packages", "dist-packages")):
        for one in distributions(path=[folder]):
            found.append((one.metadata["Name"].lower(), one.version, folder))
print(json.dumps(found))
"""
every_image = pytest.mark.parametrize("name", BUILT or ["none"])


def listed(name):
    return json.loads((FOLDER / BUILT[name]["contents"]).read_text())


@every_image
def test_every_python_package_of_an_image_is_listed(name):
    said = run(name, "python3", "-I", "-c", _FIND)
    present = {tuple(entry) for entry in json.loads(said.out)}
    found = {
        (part["name"].lower(), part["version"], entry["value"])
        for part in listed(name)["components"]
        for entry in part.get("properties", ())
        if entry["name"] == "espalier:location"
    }
    assert present
    assert found == present


@every_image
def test_every_debian_package_of_an_image_is_listed(name):
    said = run(name, "dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\\n")
    present = {tuple(line.split()) for line in said.out.splitlines()}
    purls = [
        PackageURL.from_string(part["purl"])
        for part in listed(name)["components"]
        if part.get("purl", "").startswith("pkg:deb/")
    ]
    assert {(purl.name, purl.version, purl.qualifiers["arch"]) for purl in purls} == present
    assert {purl.qualifiers["distro"] for purl in purls} == {"debian-12"}


@every_image
def test_a_label_names_the_list_that_belongs_to_the_image(name):
    (found,) = json.loads(podman("image", "inspect", BUILT[name]["image"]).out)
    content = (FOLDER / BUILT[name]["contents"]).read_bytes()
    assert found["Labels"][LABEL] == hashlib.sha256(content).hexdigest()
    assert listed(name)["metadata"]["component"]["type"] == "container"


def test_the_image_of_steps_lists_torch_and_our_own_licence():
    parts = {part["name"]: part for part in listed("cpu")["components"]}
    assert parts["torch"]["purl"].startswith("pkg:pypi/torch@")
    assert parts["espalier-agents"]["licenses"][0]["license"]["id"] == "Apache-2.0"
