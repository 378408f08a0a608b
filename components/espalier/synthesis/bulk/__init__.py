"""Questions by the million: drawn in parts, in constant memory, each row written once.

stream     one part's questions, a function of its seed: it can be wound forward without judging
journal    what every draw came to, so that a killed part goes on after its last whole row
part       rows and journal of one part on disk
drawing    all parts, on as many processes as asked for, published as one artifact
"""

from espalier.synthesis.bulk.drawing import Asked, draw_questions

__all__ = ["Asked", "draw_questions"]
