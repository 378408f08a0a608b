"""SWE-bench's instances (Jimenez et al. 2023, arXiv:2310.06770), and their snapshots.

A row has the twelve standard fields; the two lists of tests are JSON arrays, or texts of JSON
arrays, as on the Hub. A snapshot is a folder named by the instance's id, or ID.tar or ID.tar.gz.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from espalier.environments.benchmarks import BenchmarkRow, read_rows
from espalier.environments.family import make_task
from espalier.records import DataError, JsonObject, Split, Task
from espalier_environments.software_repair.diffs import (
    DiffError,
    FilePatch,
    checked_path,
    parsed_diff,
)

_MAX_BYTES = 256 * 2**20
"""Most bytes of a snapshot's files together."""
_LEFT_OUT = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".pytest_cache", ".tox", ".mypy_cache"}
)
"""Folders that are not part of a snapshot."""


def _listed(value: object) -> object:
    """Return a list, parsed from JSON if it is given as text."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not a JSON list ({error})") from error
    return value


_Tests = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class InstanceRow(BenchmarkRow):
    """A row of SWE-bench."""

    instance_id: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,120}$")
    repo: str
    base_commit: str
    problem_statement: str = Field(min_length=1)
    patch: str
    test_patch: str
    FAIL_TO_PASS: _Tests = Field(min_length=1)
    PASS_TO_PASS: _Tests = ()
    version: str = ""


def read_instances(path: Path, split: Split, family: str) -> list[Task]:
    """Return the tasks of a file.

    Raises:
        DataError: a row is malformed, or one of its patches is not a diff.
    """
    return [_task(path, where, row, split, family) for where, row in read_rows(path, InstanceRow)]


def _task(path: Path, where: str, row: InstanceRow, split: Split, family: str) -> Task:
    patches: dict[str, tuple[FilePatch, ...]] = {}
    for name, text in (("patch", row.patch), ("test_patch", row.test_patch)):
        try:
            patches[name] = parsed_diff(text)
        except DiffError as error:
            raise DataError(f"{where}: {name}: {error}") from error
    arguments: JsonObject = {
        "instance_id": row.instance_id,
        "base_commit": row.base_commit,
        "test_patch": row.test_patch,
        "fail_to_pass": list(row.FAIL_TO_PASS),
        "pass_to_pass": list(row.PASS_TO_PASS),
    }
    return make_task(
        family,
        row.problem_statement,
        gold=(row.patch,),
        split=split,
        source=path.name,
        key=row.instance_id,
        kind="hidden_tests",
        arguments=arguments,
        metadata={
            "difficulty": float(len(patches["patch"])),
            "pattern": row.repo,
            "extra": {"kind": row.repo, "entities": [row.instance_id]},
        },
    )


@lru_cache(maxsize=8)
def load_snapshot(folder: Path, instance_id: str) -> dict[str, str]:
    """Return path -> content of a repository, without links, devices and history.

    Raises:
        DataError: the snapshot is missing, unreadable or too large.
    """
    checkout = folder / instance_id
    archives = [folder / f"{instance_id}{ending}" for ending in (".tar", ".tar.gz", ".tgz")]
    packed = next((archive for archive in archives if archive.is_file()), None)
    try:
        if checkout.is_dir():
            return dict(_bounded(checkout, _read_folder(checkout)))
        if packed is not None:
            return _without_root(dict(_bounded(packed, _read_archive(packed))))
    except (OSError, EOFError, tarfile.TarError, DiffError) as error:
        raise DataError(f"{packed or checkout}: no snapshot that can be read ({error})") from error
    raise DataError(
        f"{folder}: has neither a folder {instance_id} nor {instance_id}.tar(.gz). Put the "
        "repository there as it was at the instance's base_commit, or leave the instance out"
    )


def _bounded(where: Path, files: Iterator[tuple[str, bytes]]) -> Iterator[tuple[str, str]]:
    total = 0
    for path, content in files:
        total += len(content)
        if total > _MAX_BYTES:
            raise DataError(f"{where}: more than {_MAX_BYTES >> 20} MiB")
        yield path, content.decode("utf-8", "surrogateescape")


def _read_folder(root: Path) -> Iterator[tuple[str, bytes]]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        for name in sorted(names):
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink() and name not in _LEFT_OUT:
                yield checked_path(path.relative_to(root).as_posix()), path.read_bytes()


def _read_archive(path: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as packed:
        for member in packed:
            parts = member.name.removeprefix("./").split("/")
            if member.isfile() and not _LEFT_OUT & set(parts):
                stream = packed.extractfile(member)
                assert stream is not None, "a file has content"
                yield checked_path("/".join(parts)), stream.read(_MAX_BYTES + 1)


def _without_root(files: dict[str, str]) -> dict[str, str]:
    """Return the files without a common root folder, which archives of code hosts have."""
    roots = {path.partition("/")[0] for path in files}
    if len(roots) != 1 or not all("/" in path for path in files):
        return files
    return {path.partition("/")[2]: content for path, content in files.items()}


def instance_patches(task: Task) -> tuple[tuple[FilePatch, ...], tuple[FilePatch, ...]]:
    """Return the gold patch and the test patch of an instance's task."""
    arguments: dict[str, Any] = dict(task.arguments)
    return parsed_diff(task.verifier.gold[0]), parsed_diff(str(arguments["test_patch"]))
