from espalier.orchestration.results import aligned


def test_a_table_has_its_first_column_left_and_figures_right():
    rows = [{"policy": "untrained", "EM %": "0.0"}, {"policy": "trained", "EM %": "+68.0"}]
    assert aligned(rows).splitlines() == [
        "policy      EM %",
        "untrained    0.0",
        "trained    +68.0",
    ]
