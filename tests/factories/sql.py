"""Queries without sandboxes: the program that runs in them, as a process in a folder."""

import asyncio
import json
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

from espalier.config import Profile
from espalier.environments import family_of
from espalier.records import ToolCall, ToolCalls
from espalier_environments.sql.databases import Column, Table, make_database
from espalier_environments.sql.inside import answered
from tests.factories.python_math import ended

PETS = make_database(
    "pets",
    (
        Table(
            "towns", (Column("name"), Column("people", "INTEGER")), [("Oslo", 700), ("Bari", 300)]
        ),
        Table(
            "dogs",
            (Column("name"), Column("age", "INTEGER"), Column("town", refers_to=("towns", "name"))),
            [("rex", 3, "Oslo"), ("ada", 7, "Bari"), ("bo", 5, "Oslo"), ("kim", None, "Bari")],
        ),
    ),
)
LIMITS = {"max_seconds": 1.0, "batch_seconds": 20.0, "max_rows": 50, "max_bytes": 4000}


def sql_family(episode=None, **environment):
    section = {"name": "sql", **environment}
    return family_of(
        Profile.model_validate({"environment": section, "episode": episode or {"max_turns": 6}})
    )


def query(text):
    return ToolCalls((ToolCall(name="execute", arguments={"query": text}),))


SUBMIT = ToolCalls((ToolCall(name="submit", arguments={}),))


def asked(folder, text, kind="query", database=PETS, **limits):
    """What the program says to one request, in this process."""
    path = folder / "database.sqlite"
    path.write_bytes(database.content)
    request = {"kind": kind, "text": text, "file": str(path)}
    return answered(request, LIMITS | limits)


class FolderSandbox:
    """A folder in which Python programs run as processes."""

    def __init__(self, folder):
        self.folder = Path(folder)

    async def put(self, path, content):
        (self.folder / path).write_bytes(content)

    async def get(self, path):
        return (self.folder / path).read_bytes()

    async def run_python(self, code, *, stdin=b"", timeout_s=None):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code],
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
        )
        return ended(done.stdout, done.stderr, status=done.returncode)


class FolderSandboxes:
    """Lends folders in the place of a pool; `losses` are raised by the first runs, in order."""

    def __init__(self, *losses):
        self.batches = []
        self._losses = list(losses)

    async def run(self, work):
        return await work

    @asynccontextmanager
    async def claim(self, *, judging=False):
        del judging
        await asyncio.sleep(0.01)  # as a pool under load: requests come together
        with tempfile.TemporaryDirectory() as folder:
            sandbox = FolderSandbox(folder)
            run = sandbox.run_python

            async def counted(code, *, stdin=b"", timeout_s=None):
                self.batches.append([one["text"] for one in json.loads(stdin)["requests"]])
                loss = self._losses.pop(0) if self._losses else None
                if isinstance(loss, Exception):
                    raise loss
                return loss or await run(code, stdin=stdin, timeout_s=timeout_s)

            sandbox.run_python = counted
            yield sandbox
