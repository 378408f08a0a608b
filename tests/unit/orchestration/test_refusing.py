"""A step that fails says why: as its last line, by its exit code, and to Kubernetes."""

import contextlib
import os

import pytest

from espalier.records import DataError, HungError, RegistryAwayError
from espalier.steps import refusing
from espalier.steps.refusing import TRY_AGAIN, FailureMessage, write_termination_message


@pytest.fixture
def termination_log(tmp_path, monkeypatch):
    path = tmp_path / "termination-log"
    path.touch()
    monkeypatch.setattr(refusing, "TERMINATION_LOG", path)
    return path


def test_a_refusal_ends_with_one_and_leaves_its_message(termination_log):
    with pytest.raises(SystemExit) as ended, FailureMessage("validate"):
        raise DataError("stopped:\n  row 3 is empty\n  row 4 too")
    assert ended.value.code.startswith("error: validate: stopped:\n  row 3 is empty")
    # in one line
    assert termination_log.read_text() == "error: validate: stopped: row 3 is empty; row 4 too"


def test_a_server_that_stayed_away_ends_with_its_own_code(termination_log, capsys):
    with pytest.raises(SystemExit) as ended, FailureMessage("train"):
        raise RegistryAwayError("MLflow does not answer")
    assert ended.value.code == TRY_AGAIN
    assert capsys.readouterr().err == "error: train: MLflow does not answer\n"
    # the mark by which k8s/kubeflow/controller knows it
    assert termination_log.read_text() == "try again: error: train: MLflow does not answer"


def test_a_wait_that_is_too_long_asks_for_another_try(termination_log):
    with pytest.raises(SystemExit) as ended, FailureMessage("train"):
        raise HungError("sampling hangs")
    assert ended.value.code == TRY_AGAIN
    assert termination_log.read_text() == "try again: error: train: sampling hangs"


def test_a_process_that_ends_itself_has_left_a_message(termination_log):
    child = os.fork()
    if not child:
        with FailureMessage("train"):
            os._exit(TRY_AGAIN)
    os.waitpid(child, 0)
    assert termination_log.read_text().startswith("try again: error: train: ended without a mess")


@pytest.mark.parametrize("ended", [None, KeyboardInterrupt()])
def test_a_step_that_ends_well_or_is_stopped_leaves_none(termination_log, ended):
    with contextlib.suppress(KeyboardInterrupt), FailureMessage("train"):
        if ended is not None:
            raise ended
    assert termination_log.read_text() == ""


def test_an_error_of_ours_keeps_its_traceback_and_is_named(termination_log):
    with pytest.raises(ZeroDivisionError), FailureMessage("train"):
        1 / 0  # noqa: B018 (it raises)
    assert termination_log.read_text() == "error: train: ZeroDivisionError: division by zero"


def test_a_long_message_is_cut_at_the_kubelets_limit(termination_log, monkeypatch):
    write_termination_message("\u20ac" * 3000)
    written = termination_log.read_bytes()
    assert 4090 <= len(written) <= 4096
    assert written.decode().endswith("\u20ac...")
    monkeypatch.setattr(refusing, "TERMINATION_LOG", termination_log.with_name("absent"))
    write_termination_message("error")  # outside of a container
    assert not termination_log.with_name("absent").exists()


def test_no_secret_reaches_the_termination_message(termination_log, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t-of-s3")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "token-of-mlflow")
    write_termination_message(
        "GET http://me:pa55@mlflow:5000/x with token-of-mlflow and s3cr3t-of-s3"
    )
    assert termination_log.read_text() == "GET http://mlflow:5000/x with *** and ***"
