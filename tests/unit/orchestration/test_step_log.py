from espalier.orchestration.kfp_local import StepLog

PRINTED = """\
06:42:16.328 - INFO - Executing task 'ingest'
    [KFP Executor INFO]: Got executor_input:
    ingest            documents                    20/20
    error: ingest: docs.txt: not UTF-8
      mend the file
    \n
06:42:19.340 - INFO - Task 'ingest' finished with status FAILURE
"""


def test_the_file_has_everything_and_stderr_what_stages_say(tmp_path, capsys):
    path = tmp_path / "kfp.log"
    with StepLog(path, ["ingest"]) as log:
        for start in range(0, len(PRINTED), 7):
            log.write(PRINTED[start : start + 7])
        assert log.error == "ingest: docs.txt: not UTF-8\nmend the file"
    assert path.read_text() == PRINTED
    assert capsys.readouterr().err == "ingest            documents                    20/20\n"
