"""Questions by the million: drawn in parts, in constant memory, each row written once.

stream     one part's questions, a function of its seed: it can be wound forward without judging
journal    what every draw came to, so that a killed part goes on after its last whole row
part       rows and journal of one part on disk
order      which part draws how much, and who makes up for one that ran dry
making     parts of an order in one process
workers    who draws them: this process or others beside it; `ray_workers`: nodes of a Ray cluster
drawing    all parts, by whichever of these, published as one artifact
"""

from espalier.synthesis.bulk.drawing import draw_questions
from espalier.synthesis.bulk.order import Asked
from espalier.synthesis.bulk.workers import local_workers

__all__ = ["Asked", "draw_questions", "local_workers"]
