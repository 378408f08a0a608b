import asyncio

import pytest

from espalier.sandbox.client import cleanup_on_failure


def undone(ending):
    done = []

    async def step(name):
        done.append(name)

    async def block():
        async with cleanup_on_failure(lambda: step("first"), lambda: step("second")):
            if ending is not None:
                raise ending

    if ending is None:
        asyncio.run(block())
    else:
        with pytest.raises(type(ending)):
            asyncio.run(block())
    return done


def test_a_finished_block_is_not_cleaned_up():
    assert undone(None) == []


@pytest.mark.parametrize("ending", [ValueError(), asyncio.CancelledError()])
def test_a_failed_block_is_cleaned_up_and_reraises(ending):
    assert undone(ending) == ["first", "second"]
