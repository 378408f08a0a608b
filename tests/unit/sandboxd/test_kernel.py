"""What sandboxd asks of the kernel itself."""

import errno
import fcntl
import os

import pytest

from sandboxd import kernel


def test_a_sealed_file_is_read_and_not_changed():
    descriptor = kernel.sealed_file("stdin", b"abc")
    try:
        assert os.read(descriptor, 10) == b"abc"
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"x", 0)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("failures", "error"), [(3, None), (99, errno.EBUSY)], ids=["for a moment", "for good"]
)
def test_a_page_that_the_kernel_looks_at_is_waited_for(monkeypatch, failures, error):
    asked = []
    seal = fcntl.fcntl

    def busy(descriptor, command, seals):
        asked.append(descriptor)
        if len(asked) <= failures:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return seal(descriptor, command, seals)

    monkeypatch.setattr(kernel.fcntl, "fcntl", busy)
    if error is None:
        os.close(kernel.sealed_file("stdin", b"abc"))
        return
    with pytest.raises(OSError, match="busy") as refusal:
        kernel.sealed_file("stdin", b"abc")
    assert refusal.value.errno == error
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(asked[-1])
