"""Layer-wise expansion: questions grown by an agent that searches, summarizes and validates.

walks      seed questions by random walks
calls      what the agent is told and may write
tools      search, summarize, validate on the knowledge base
embedded   a model that writes the calls without any network
agent      the loop over a leaf, the layers over a question
growing    seeds in, grown questions out
"""

from espalier.synthesis.webshaper.expansion.embedded import EmbeddedExpander
from espalier.synthesis.webshaper.expansion.growing import Growing

__all__ = ["EmbeddedExpander", "Growing"]
