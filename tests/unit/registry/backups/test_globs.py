import pytest

from espalier.records import StorageError
from espalier.registry.backups.globs import compiled

MATCHING = [
    ("kept/", "kept/tasks/12ab/manifest.json"),
    ("**/steps/*/checkpoint/", "run-1/steps/train/checkpoint/manifest.json"),
    ("**/steps/*/checkpoint/", "team/run-1/steps/train/checkpoint/sha256/00"),
    ("**/steps/*/checkpoint/", "steps/train/checkpoint/manifest.json"),
    ("**.tmp", "a/b.tmp"),
    ("*.tmp", "b.tmp"),
    ("run-?/x", "run-1/x"),
    ("run-[12]/", "run-2/x"),
    ("run-[!12]/", "run-3/x"),
    ("a[-z]b", "a-b"),
    ("a.b", "a.b"),
    ("a[b", "a[b"),
    ("**", "any/thing\nat all"),
]
OTHERS = [
    ("kept/", "kept"),
    ("kept/", "run-1/kept/x"),
    ("kept", "kept/x"),
    ("checkpoints/", "run-1/steps/train/checkpoint/x"),
    ("**/steps/*/checkpoint/", "run-1/steps/a/b/checkpoint/x"),
    ("**/steps/*/checkpoint/", "run-1/mysteps/a/checkpoint/x"),
    ("*.tmp", "a/b.tmp"),
    ("run-?/x", "run-12/x"),
    ("run?x", "run/x"),
    ("run-[!12]/", "run-1/x"),
    ("run[!1]x", "run/x"),
    ("a.b", "a-b"),
]


@pytest.mark.parametrize(("glob", "name"), MATCHING)
def test_a_glob_matches_whole_names(glob, name):
    assert compiled(glob).fullmatch(name)


@pytest.mark.parametrize(("glob", "name"), OTHERS)
def test_a_glob_does_not_match_other_names(glob, name):
    assert not compiled(glob).fullmatch(name)


@pytest.mark.parametrize("glob", ["[z-a]", "x[!]"])
def test_what_is_no_glob_is_refused(glob):
    with pytest.raises(StorageError, match="is no glob"):
        compiled(glob)
