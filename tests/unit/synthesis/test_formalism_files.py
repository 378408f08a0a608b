import json

import pytest

from espalier.records import DataError
from espalier_search.synthesis.webshaper.notation_files import check_file, figures, table

FAIR = [["C@Lyon", "country", "V@X"], ["V@X", "currency", "?"]]
SHORT = [*FAIR, ["V@X", "is landlocked"]]
SHORTCUT = [*FAIR, ["C@Lyon", "pays in", "?"], ["C@Lyon", "accepts", "?"]]


def _written(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_faulty_rows_count_once_per_kind_and_have_no_figures(tmp_path):
    path = _written(tmp_path, {"formalization": FAIR}, SHORT, {"formalization": SHORTCUT})
    found = figures(check_file(path))
    assert found["rows"] == 3
    assert found["without_fault"] == 1
    counts = {kind: count for kind, count in found["rows_by_kind"].items() if count}
    assert counts == {"entry_not_three_items": 1, "constant_beside_target": 1}
    assert found["structure"]["depth"] == {"mean": 2, "median": 2, "max": 2}
    assert list(found["faults"]) == [2, 3]
    assert len(found["faults"][3]) == 2


def test_rows_with_unreadable_entries_are_counted_as_not_judged_whole(tmp_path):
    checked = check_file(_written(tmp_path, FAIR, SHORT, [SHORT[2]], [FAIR[0]]))
    found = figures(checked)
    assert found["rows_with_unreadable_entry"] == 2
    assert found["rows_by_kind"]["no_target"] == 1
    assert "no_target" in table(checked)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no row"),
        ("[]\n{", "line 2: "),
        ('{"question": "?"}', 'line 1: .*"formalization"'),
        ("[" * 100_000, "line 1: "),
    ],
)
def test_a_file_of_something_else_is_refused_with_the_line(tmp_path, text, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        check_file(path)


def test_a_missing_or_undecodable_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"rows\.jsonl"):
        check_file(tmp_path / "rows.jsonl")
    (tmp_path / "rows.jsonl").write_bytes(b"\xff\xfe[]")
    with pytest.raises(DataError, match=r"rows\.jsonl"):
        check_file(tmp_path / "rows.jsonl")
