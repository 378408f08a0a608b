import time


def wait_until(holds, *, within_s=120.0, process=None):
    """Until `holds()`; before that `process` must not end."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert process is None or process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
