"""What a run says, capped and in order, whoever reads."""

import asyncio
import base64
import json
import os

from sandboxd.run import FLOOD_BYTES, Output, pump


def _told(frames):
    lines = [json.loads(frame) for frame in frames]
    return b"".join(base64.b64decode(line["data"]) for line in lines)


async def _all(output):
    return [frame async for frame in output.frames()]


def _through(data, cap_bytes, kill=lambda cause: None):
    async def main():
        output = Output(cap_bytes, kill)
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        stop = asyncio.get_running_loop().create_future()
        pumping = asyncio.create_task(pump(reading, "stdout", output, stop))
        collecting = asyncio.create_task(_all(output))
        await asyncio.to_thread(_write, writing, data)
        await pumping
        await output.put(None)
        os.close(reading)
        return _told(await collecting), output

    return asyncio.run(main())


def _write(writing, data):
    with os.fdopen(writing, "wb") as file:
        file.write(data)


def test_output_under_the_cap_is_whole():
    data = os.urandom(300_000)
    told, output = _through(data, 300_000)
    assert told == data
    assert not output.truncated


def test_the_first_bytes_are_kept_and_the_rest_is_counted():
    data = os.urandom(300_000)
    told, output = _through(data, 100_001)
    assert told == data[:100_001]
    assert (output.truncated, output.dropped_bytes) == (True, 199_999)


def test_a_flood_is_told_once_too_much_was_dropped():
    causes = []
    _through(bytes(FLOOD_BYTES + 2**20), 10, causes.append)
    assert set(causes) == {"output"}


def test_a_stopped_pump_takes_what_the_pipe_still_holds():
    async def main():
        output = Output(1000, lambda cause: None)
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        stop = asyncio.get_running_loop().create_future()
        os.write(writing, b"left over")
        stop.set_result(None)
        await pump(reading, "stdout", output, stop)
        await output.put(None)
        os.close(reading)
        os.close(writing)
        return _told(await _all(output))

    assert asyncio.run(main()) == b"left over"


def test_a_reader_that_leaves_ends_the_run_and_blocks_nobody():
    async def main():
        causes = []
        output = Output(10**9, causes.append)
        for _ in range(3):
            await output.take("stdout", b"x")
        output.abandon()
        for _ in range(100):
            await output.take("stdout", b"x" * 1000)
        await output.put(None)
        return causes

    assert asyncio.run(asyncio.wait_for(main(), 5)) == ["closed"]


def test_a_reader_that_has_everything_ends_nothing():
    async def main():
        causes = []
        output = Output(10, causes.append)
        await output.put(None)
        output.abandon()
        return causes

    assert asyncio.run(main()) == []
