import json
import random

import pytest

from tests.integration.commands import espalier_here, settings

SYLLABLES = ("ba", "ko", "mi", "ru", "ta", "ve", "lo", "shi", "dan", "or", "pel", "gri")


MINIATURE = (
    "knowledge.max_cities=0",
    "threads=1",
    "policy.prestage.steps=4",
    "warm_start.steps=6",
    "curriculum.candidates=20",
    "training.steps=2",
    "training.tasks_per_step=4",
    "training.group_size=4",
)
"""The whole chain in a minute."""


def write_folder(folder, count=50):
    """Small Markdown pages about invented villages, and a question about each."""
    rng = random.Random(0)
    folder.mkdir()
    questions, names = [], set()
    while len(names) < 2 * count:
        names.add("".join(rng.sample(SYLLABLES, 3)).capitalize())
    names = sorted(names)
    for village, mayor in zip(names[:count], names[count:], strict=True):
        (folder / f"{village}.md").write_text(
            f"# {village}\n\n{village} is a village of {rng.randrange(100, 900)} people.\n"
            f"The mayor of {village} is {mayor}.\nIts oldest trade is that of the baker.\n"
        )
        questions.append({"question": f"Who is the mayor of {village}?", "answer": mayor})
    path = folder.with_suffix(".jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in questions))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("triple_lines", [True, False])
def test_a_folder_with_triples_runs_the_whole_chain(tmp_path, triple_lines):
    folder = tmp_path / "villages"
    questions = write_folder(folder).read_text().splitlines()
    rows = [
        {
            "subject": row["question"].removeprefix("Who is the mayor of ")[:-1],
            "relation": "mayor",
            "object": row["answer"],
        }
        for row in map(json.loads, questions)
    ]
    triples = tmp_path / "triples.jsonl"
    triples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = [
        'knowledge.source="folder"',
        f'knowledge.path="{folder}"',
        f'knowledge.triples="{triples}"',
        f"knowledge.triple_lines={str(triple_lines).lower()}",
        *MINIATURE,
    ]
    run = ("run", "--profile", "smoke", "--out", "runs/villages", "--json")
    done = espalier_here(*run, *settings(*changes), cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    figures = json.loads(done.stdout)["eval"]
    report = (tmp_path / "runs" / "villages" / "report.html").read_text()
    assert figures["trained"]["n"] >= 5
    assert ("The same without the added lines" in report) is triple_lines
    assert figures["untrained"]["as_written_em"] is None
    for policy in ("warm_start", "trained"):
        if not triple_lines:
            assert figures[policy]["as_written_em"] is None
            continue
        assert figures[policy]["as_written_n"] == figures[policy]["n"] >= 5
        assert figures[policy]["added_lines_em"] == figures[policy]["em"]
        assert 0 <= figures[policy]["as_written_em"] <= 1


@pytest.mark.slow
def test_a_folder_of_markdown_and_questions_runs_the_whole_chain(tmp_path):
    questions = write_folder(tmp_path / "villages")
    changes = [
        'knowledge.source="folder"',
        f'knowledge.path="{tmp_path}/villages"',
        f'knowledge.questions="{questions}"',
        *MINIATURE,
    ]
    run = ("run", "--profile", "smoke", "--out", "runs/villages", "--json")
    done = espalier_here(*run, *settings(*changes), cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["eval"]["trained"]["n"] >= 5
    assert summary["registry"]["version"] == 1
    assert (tmp_path / "runs" / "villages" / "report.html").stat().st_size > 10_000
