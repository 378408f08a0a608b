"""Lists of contents, from file systems made here."""

import importlib.util
import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("cyclonedx_py", reason="cyclonedx-bom is not installed: make install")
if shutil.which("dpkg-query") is None:
    pytest.skip("dpkg-query is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[3] / "components" / "image_contents.py"
SPEC = importlib.util.spec_from_file_location("image_contents", SCRIPT)
contents_of = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(contents_of)
STATUS = """Package: libc6
Status: install ok installed
Maintainer: someone <someone@example.org>
Architecture: amd64
Source: glibc
Version: 2.36-9+deb12u10
Description: C library

Package: gone
Status: deinstall ok config-files
Maintainer: someone <someone@example.org>
Architecture: amd64
Version: 1.0
Description: removed

"""
RELEASE = 'ID=debian\nVERSION_ID="12"\n'
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: MIT\n"
DEBIAN = {"./var/lib/dpkg/status": STATUS, "./usr/lib/os-release": RELEASE}


def package(name, version, site="opt/espalier/lib/python3.11/site-packages"):
    folder = f"./{site}/{name}-{version}.dist-info"
    return {
        f"{folder}/METADATA": METADATA.format(name=name, version=version),
        f"{folder}/RECORD": "",
    }


def listed(tmp_path, files):
    """The list of an image of these files, or what is said in its place."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    content.seek(0)
    out, said = tmp_path / "list.json", ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", SimpleNamespace(buffer=content))
        try:
            contents_of.main(["--name=mine", "--version=1.2", f"--out={out}"])
        except SystemExit as refusal:
            said = str(refusal.code)
    assert (said == "") is out.exists(), said
    return json.loads(out.read_text()) if out.exists() else None, said


def purls(found):
    return sorted(part["purl"] for part in found["components"])


def test_packages_of_python_and_debian_are_listed(tmp_path):
    found, _ = listed(tmp_path, package("minio", "7.2.20") | package("kfp", "2.17.0") | DEBIAN)
    assert purls(found) == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12&upstream=glibc",
        "pkg:pypi/kfp@2.17.0",
        "pkg:pypi/minio@7.2.20",
    ]
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    image = found["metadata"]["component"]
    assert (image["type"], image["name"], image["version"]) == ("container", "mine", "1.2")


def test_a_python_that_is_no_package_is_listed(tmp_path):
    header = {"./usr/local/include/python3.11/patchlevel.h": '#define PY_VERSION "3.11.15"\n'}
    of_debian = {"./usr/include/python3.11/patchlevel.h": '#define PY_VERSION "3.11.2"\n'}
    found, _ = listed(tmp_path, package("pip", "24.0") | header | of_debian)
    (python,) = (part for part in found["components"] if part["name"] == "python")
    assert (python["version"], python["purl"]) == ("3.11.15", "pkg:generic/python@3.11.15")
    assert python["cpe"].startswith("cpe:2.3:a:python:python:3.11.15:")


def test_a_path_that_leaves_the_folder_is_passed_over(tmp_path):
    outside = {f"../../{'../' * 9}tmp/x-1.dist-info/METADATA": "Name: x\nVersion: 1\n"}
    found, _ = listed(tmp_path, package("pip", "24.0") | outside)
    assert purls(found) == ["pkg:pypi/pip@24.0"]


@pytest.mark.parametrize("text", ["not a tar", ""])
def test_what_is_no_tar_is_one_message(tmp_path, text):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--name=a", "--version=1", f"--out={tmp_path / 'x'}"],
        input=text.encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.decode().startswith("error: ")
    assert "Traceback" not in done.stderr.decode()
