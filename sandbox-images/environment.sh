#!/bin/sh
# Inside a build: makes /opt/sandbox, the environment of sandboxd and of the agent's programs.
#   environment.sh PACKAGE...
set -eu
cd "$(dirname "$0")"
python3 -m venv /opt/sandbox
/opt/sandbox/bin/pip install --no-cache-dir --only-binary :all: --constraint constraints.txt \
  starlette uvicorn "$@"
site=$(/opt/sandbox/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -r sandboxd "$site/"
# an installer and the libraries' own tests are of no use to an agent, and are a third of it
/opt/sandbox/bin/pip uninstall --quiet --yes setuptools pip
find "$site" -type d -name tests -prune -exec rm -rf {} +
# the root file system is read-only: what is not compiled now would be, at every start
/opt/sandbox/bin/python -m compileall -q "$site/sandboxd"
