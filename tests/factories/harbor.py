"""Harbor's task folders, made by hand."""

from pathlib import Path

TEST = """#!/bin/bash
# apt-get install curl: only a comment
mkdir -p /logs/verifier
if [ "$(cat /app/hello.txt 2>/dev/null)" = "$WANTED" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
DOCKERFILE = """FROM python:3.11-slim
ARG PLACE=/app
WORKDIR $PLACE
ENV GREETING="Hello" OTHER=x
RUN mkdir -p /app/notes /data
COPY words.txt /data/
COPY tools ./tools
"""


def task_folder(parent, name, *, toml="", files=(), **changed):
    """A task that wants `/app/hello.txt`; None for a file leaves it out."""
    folder = Path(parent) / name
    contents = {
        "task.toml": (
            f'schema_version = "1.1"\n[task]\nname = "own/{name}"\n'
            '[metadata]\ncategory = "files"\ndifficulty = "easy"\n'
            "[verifier]\ntimeout_sec = 30.0\n"
            f'[verifier.env]\nWANTED = "{name}"\n{toml}'
        ),
        "instruction.md": f'Write "{name}" to /app/hello.txt.\n',
        "environment/Dockerfile": DOCKERFILE,
        "environment/words.txt": f"{name}\n",
        "environment/tools/say.sh": 'echo "$GREETING $1"\n',
        "tests/test.sh": TEST,
        "solution/solve.sh": f"#!/bin/bash\nprintf %s {name} > hello.txt\n",
        **dict(files),
        **{key.replace("__", "/"): value for key, value in changed.items()},
    }
    for path, content in contents.items():
        if content is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content)
    return folder
