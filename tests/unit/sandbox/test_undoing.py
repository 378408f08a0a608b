import asyncio

import pytest

from espalier.sandbox.undoing import undone_on_failure


def undone(ending):
    done = []

    async def step(name):
        done.append(name)

    async def block():
        async with undone_on_failure(lambda: step("first"), lambda: step("second")):
            if ending is not None:
                raise ending

    if ending is None:
        asyncio.run(block())
    else:
        with pytest.raises(type(ending)):
            asyncio.run(block())
    return done


def test_a_block_that_comes_to_its_end_is_left_as_it_is():
    assert undone(None) == []


@pytest.mark.parametrize("ending", [ValueError(), asyncio.CancelledError()])
def test_whatever_ends_a_block_undoes_it_in_order_and_goes_on(ending):
    assert undone(ending) == ["first", "second"]
