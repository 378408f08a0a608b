"""Kubeflow's own pages and the server before them, built with npm and kept.

As its frontend/Dockerfile does, without lint and type checks, in a copy of that folder: with
the release of Node that .nvmrc names, out of npm as everything else.
"""

import json
import os
import platform
import shutil
import subprocess
import time

from tests.cluster.checkouts import state_of
from tests.cluster.places import ClusterError

FOLDER = "pages"
"""Of the programs that are kept: `node`, `server` and `client` are in it."""
PACKAGES = ("npm", "chromium")
"""Debian's, for building and for seeing them."""
_FRONTEND = "frontend"
_LEFT_OUT = shutil.ignore_patterns("node_modules", "build", "dist", "coverage")
_PLACEHOLDERS = ("fs",)
"""Empty packages that hold the name of a module of Node's; not every registry has them."""
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}
_METADATA = "src/third_party/mlmd/generated"
_SAID_CHARACTERS = 2000


def missing():
    """Why they cannot be built or seen here, else None."""
    absent = [name for name in PACKAGES if shutil.which(name) is None]
    return f"not installed: apt-get install {' '.join(absent)}" if absent else None


def is_built(programs):
    """Whether they are kept, of whatever checkout."""
    return (programs / FOLDER / "complete").exists()


def build(sources, programs, say):
    """Build them where what is kept is not of this checkout.

    Args:
        sources: the checkouts, which stay as they are.
        programs: the folder to keep programs in.
        say: told what took how many seconds.

    Raises:
        ClusterError: npm or a build failed, with the end of what it said.
    """
    kept, state = programs / FOLDER, state_of(sources.pipelines, _FRONTEND, "VERSION")
    if is_built(programs) and (kept / "complete").read_text() == state:
        return
    if shutil.which("npm") is None:
        raise ClusterError("no npm on PATH: apt-get install npm")
    work = programs / "pages.work"
    for folder in (kept, work):
        shutil.rmtree(folder, ignore_errors=True)
    _build(sources.pipelines / _FRONTEND, work, lambda what, began: _told(say, what, began))
    kept.mkdir()
    _keep(work, kept)
    shutil.rmtree(work)
    (kept / "complete").write_text(state)


def _told(say, what, began):
    say(f"pages: {what}", time.monotonic() - began)


def _build(checkout, work, say):
    source, server = work / "source", work / "source" / "server"
    shutil.copytree(checkout, source, ignore=_LEFT_OUT)
    _drop_placeholders(source)
    began = time.monotonic()
    npm = _Npm(source, work / "tools")
    say("Node", began)
    for what, command, folder in (
        ("npm ci", ["ci"], source),
        ("npm ci of the server", ["ci"], server),
        ("styles", ["run", "build:tailwind"], source),
        ("vite build", ["exec", "--", "vite", "build"], source),
        ("server", ["run", "build"], server),
        ("server's own modules", ["prune", "--omit=dev"], server),
    ):
        began = time.monotonic()
        npm.run(folder, *command)
        say(what, began)


class _Npm:
    """npm on the Node that the checkout asks for; no package's own scripts are run."""

    def __init__(self, source, tools):
        package = json.loads((source / "package.json").read_text())
        node = f"node-linux-{_MACHINES[platform.machine()]}"
        version = (source / ".nvmrc").read_text().strip().removeprefix("v")
        tools.mkdir(parents=True)
        wanted = [f"{node}@{version}", package["packageManager"]]
        _run(["npm", "install", "--ignore-scripts", "--no-audit", "--prefix=.", *wanted], tools)
        modules = tools / "node_modules"
        self._command = [str(modules / node / "bin" / "node"), str(modules / "npm/bin/npm-cli.js")]
        self._path = f"{modules / node / 'bin'}:{os.environ['PATH']}"

    def run(self, folder, *words):
        quiet = ("--ignore-scripts", "--no-audit", "--no-fund") if words[0] != "run" else ()
        command = [*self._command, words[0], *quiet, *words[1:]]
        _run(["nice", "-n", "10", *command], folder, PATH=self._path)


def _drop_placeholders(source):
    for name in ("package.json", "package-lock.json"):
        content = json.loads((source / name).read_text())
        packages = content.get("packages", {})
        for placeholder in _PLACEHOLDERS:
            packages.pop(f"node_modules/{placeholder}", None)
            for asked in (content, packages.get("", {})):
                asked.get("devDependencies", {}).pop(placeholder, None)
        (source / name).write_text(json.dumps(content))


def _keep(work, kept):
    """What its image has, below the folders that its Dockerfile names."""
    source = work / "source"
    (node,) = (work / "tools" / "node_modules").glob("node-linux-*/bin/node")
    shutil.move(node, kept / "node")
    shutil.move(source / "build", kept / "client")
    for pattern in ("*.ts", "*.map"):
        for path in (*(source / "server").rglob(pattern), *(kept / "client").rglob(pattern)):
            path.unlink()
    shutil.move(source / "server", kept / "server")
    generated = kept / "server" / _METADATA
    shutil.copytree(source / _METADATA, generated, dirs_exist_ok=True)
    (generated / "package.json").write_text('{"type": "commonjs"}\n')


def _run(command, folder, **environment):
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-_SAID_CHARACTERS:]
        raise ClusterError(f"{' '.join(command)} in {folder}: {said}")
