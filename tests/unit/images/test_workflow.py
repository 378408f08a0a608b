"""The workflow that publishes images, read as a document; nothing runs it here."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PATH = ROOT / ".github" / "workflows" / "images.yml"
WORKFLOW = yaml.safe_load(PATH.read_text())
(JOB,) = WORKFLOW["jobs"].values()
STEPS = JOB["steps"]
TOOLS = {"cosign", "echo", "grep", "make", "podman", "python"}


def test_it_runs_for_tags_of_releases_alone():
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # `on` is a boolean in YAML 1.1


def test_it_may_only_read_sources_push_and_sign():
    assert WORKFLOW["permissions"] == {}
    assert JOB["permissions"] == {"contents": "read", "packages": "write", "id-token": "write"}


@pytest.mark.parametrize(
    "line",
    [
        line
        for path in PATH.parent.glob("*.yml")
        for line in re.findall(r"uses: .*", path.read_text())
    ],
)
def test_actions_are_named_by_commit_with_their_tag(line):
    assert re.fullmatch(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)


def test_sources_are_checked_out_without_leaving_a_token():
    (checkout,) = (s for s in STEPS if s.get("uses", "").startswith("actions/checkout@"))
    assert checkout["with"] == {"persist-credentials": False}


def test_every_target_and_sandbox_is_published():
    dockerfile = (ROOT / "components" / "Dockerfile").read_text()
    targets = set(re.findall(r"FROM \w+ AS (\w+)", dockerfile)) - {"wheel", "runtime", "torch"}
    sandboxes = {
        f"sandbox-{path.parent.name}" for path in ROOT.glob("sandbox-images/*/Containerfile")
    }
    assert set(JOB["strategy"]["matrix"]["image"]) == targets | sandboxes


def commands():
    return [line.strip() for step in STEPS for line in step.get("run", "").splitlines()]


def test_images_are_built_and_pushed_by_our_own_targets():
    makefile = (ROOT / "Makefile").read_text()
    made = [line.split()[1] for line in commands() if line.startswith("make ")]
    assert made == ["images", "push-images"]
    for target in made:
        assert re.search(rf"(?m)^{target}: .*## ", makefile)
    used = {re.sub(r"^\w+=\$\(", "", line).split()[0] for line in commands()}
    assert used <= TOOLS
    assert not [line for line in commands() if re.search(r"\bpodman (?!login)", line)]


def test_nothing_of_a_release_is_written_into_a_script():
    """Names of tags and users are anybody's text: they come as variables of the environment."""
    assert not [line for line in commands() if "${{" in line]


def test_what_is_pushed_was_listed_and_scanned_before():
    def place(text):
        (found,) = (
            n for n, step in enumerate(STEPS) if text in f"{step.get('uses')} {step.get('run')}"
        )
        return found

    order = ["make images", "scan-action", "make push-images", "cosign sign", "upload-artifact"]
    assert [place(text) for text in order] == sorted(place(text) for text in order)
    scan = STEPS[place("scan-action")]["with"]
    assert scan["sbom"].startswith("dist/images/espalier-")
    assert scan.get("fail-build", "true") == "true"


def test_what_is_signed_is_a_digest_with_its_list():
    signing = [line for line in commands() if line.startswith("cosign ") and "login" not in line]
    assert all(line.endswith('"$digest"') for line in signing)
    assert any("attest --yes --type cyclonedx" in line for line in signing)
    assert not [line for line in commands() if "--key" in line]  # the workflow's own identity


def test_tokens_are_read_from_standard_input():
    logins = [line for line in commands() if " login " in line]
    assert len(logins) == 2
    assert all("--password-stdin" in line and '<<< "$REGISTRY_TOKEN"' in line for line in logins)
