"""The workflow that publishes images, read as a document; nothing runs it here."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
PATH = ROOT / ".github" / "workflows" / "images.yml"
WORKFLOW = yaml.safe_load(PATH.read_text())
(JOB,) = WORKFLOW["jobs"].values()
STEPS = JOB["steps"]


def test_it_runs_for_releases_with_few_rights_and_tokens():
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # `on` is a boolean in YAML 1.1
    assert WORKFLOW["permissions"] == {}
    assert JOB["permissions"] == {"contents": "read", "packages": "write", "id-token": "write"}
    (checkout,) = (s for s in STEPS if s.get("uses", "").startswith("actions/checkout@"))
    assert checkout["with"] == {"persist-credentials": False}
    logins = [line for line in commands() if " login " in line]
    assert len(logins) == 2
    assert all("--password-stdin" in line and '<<< "$REGISTRY_TOKEN"' in line for line in logins)


def test_actions_are_named_by_commit_with_their_tag():
    lines = [line for path in PATH.parent.glob("*.yml") for line in path.read_text().splitlines()]
    used = [line.strip(" -") for line in lines if "uses: " in line]
    assert used
    for line in used:
        assert re.fullmatch(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)


def test_every_target_and_sandbox_is_published():
    dockerfile = (ROOT / "components" / "Dockerfile").read_text()
    targets = set(re.findall(r"FROM \w+ AS (\w+)", dockerfile)) - {"wheel", "runtime", "torch"}
    sandboxes = {
        f"sandbox-{path.parent.name}" for path in ROOT.glob("sandbox-images/*/Containerfile")
    }
    assert set(JOB["strategy"]["matrix"]["image"]) == targets | sandboxes


def commands():
    return [line.strip() for step in STEPS for line in step.get("run", "").splitlines()]


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
