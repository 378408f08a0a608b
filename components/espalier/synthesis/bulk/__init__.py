"""Questions by the million: drawn in parts, in constant memory, each row written once.

stream     one part's questions, a function of its seed: it can be wound forward without judging
journal    what every draw came to, so that a killed part goes on after its last whole row
part       rows and journal of one part on disk
order      which part draws how much, and who makes up for one that ran dry
making     parts of an order in one process
drawing    all parts, on as many processes as asked for, published as one artifact
"""

from espalier.synthesis.bulk.drawing import draw_questions
from espalier.synthesis.bulk.order import Asked

__all__ = ["Asked", "draw_questions"]
