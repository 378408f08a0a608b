"""Questions over a knowledge source, and the environment in which an agent searches it.

knowledge     sources of triples and documents, splits of entities, views, the search tool
synthesis     questions (WebShaper), demonstrations, agent texts (FAS, HAS) made from them
search_qa     the environment
commands      `espalier data check-queries` and `draw-questions`
"""
