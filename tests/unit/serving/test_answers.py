"""Answers put together from pieces."""

from espalier.serving.answers import Written
from espalier.serving.choice import Piece


def test_pieces_of_an_answer_are_joined_in_order():
    written = Written()
    written.add(Piece("ly", (1, 2), (-0.5, -1.0), None))
    assert written.as_piece() == Piece("ly", (1, 2), (-0.5, -1.0), None)
    written.add(Piece("on", (3,), (-2.0,), "stop"))
    assert written.as_piece() == Piece("lyon", (1, 2, 3), (-0.5, -1.0, -2.0), "stop")
