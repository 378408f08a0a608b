"""Who caused the end of an attempt is decided in one place, and so is what follows."""

import pytest

from espalier.environments import EnvironmentLostError, ProgramBrokeSandboxError
from espalier.environments.contract import UnreadableTextError
from espalier.environments.losses import (
    Attempts,
    CallTimeoutError,
    LossCause,
    LostCallError,
    environment_losses,
    loss_of,
)
from espalier.records import EngineError
from espalier.records.trajectory import FinishReason


@pytest.mark.parametrize(
    ("error", "loss"),
    [
        (ProgramBrokeSandboxError(""), (LossCause.POLICY, FinishReason.PROGRAM_BROKE_SANDBOX)),
        (UnreadableTextError(""), (LossCause.POLICY, FinishReason.PARSE_ERROR)),
        (CallTimeoutError(), (LossCause.ENVIRONMENT, FinishReason.TIMEOUT)),
        (EnvironmentLostError(""), (LossCause.ENVIRONMENT, FinishReason.SANDBOX_LOST)),
        (LostCallError(""), (LossCause.ENVIRONMENT, FinishReason.LOST_CALL)),
        (EngineError(""), (LossCause.OURS, None)),
        (ValueError(""), (LossCause.OURS, None)),
        (TimeoutError(), (LossCause.OURS, None)),
    ],
)
def test_an_error_has_one_cause(error, loss):
    assert loss_of(error) == loss


@pytest.mark.parametrize("error", [EngineError("away"), ProgramBrokeSandboxError("killed")])
def test_only_what_the_environment_caused_loses_an_attempt(error):
    with pytest.raises(type(error)), environment_losses():
        raise error
    with environment_losses() as lost:
        raise EnvironmentLostError("drained")
    assert (lost.reason, lost.because) == (FinishReason.SANDBOX_LOST, "drained")


def test_lost_attempts_are_repeated_up_to_the_limit():
    attempts = Attempts(max_replays=2)
    again = [attempts.again_after(FinishReason.TIMEOUT) for _ in range(3)]
    assert again == [True, True, False]
    assert attempts.losses == [FinishReason.TIMEOUT] * 3
    assert not Attempts(max_replays=0).again_after(FinishReason.TIMEOUT)
