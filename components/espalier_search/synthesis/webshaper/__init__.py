"""WebShaper (arXiv:2507.15061): questions as queries over knowledge projections.

query              trees of projections, and their evaluation on a graph
candidate, rules   a query to be judged, and what makes it a fair question
steps, generator   edges and signatures of a split, and the questions drawn from them
expansion          questions grown layer by layer by an agent; expansion_calls: what it may write
notation           entries [X, relation, S]; notation_checks, _queries and _files: what is done
                   with them
"""
