import pytest

from espalier.storage import transfer
from tests.fakes.s3_stand_in import MIN_PART_BYTES, s3_stand_in
from tests.unit.pauses import pauses  # noqa: F401 (pytest finds fixtures by name)


@pytest.fixture
def s3(monkeypatch):
    """The stand-in; parts are as small as S3 allows, so that large files need not be large."""
    monkeypatch.setattr(transfer, "PART_BYTES", MIN_PART_BYTES)
    with s3_stand_in() as stand_in:
        yield stand_in
