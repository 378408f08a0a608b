"""WebShaper (arXiv:2507.15061): questions as queries over knowledge projections.

query              trees of projections, and their evaluation on a graph
candidate, rules   a query to be judged, and the rules of a fair question
steps, generator   edges and signatures of a split, and the questions drawn from them
expansion          questions grown layer by layer by an agent
expansion_calls    requests to that agent, and its calls
notation           entries [X, relation, S], parsed and printed
notation_checks    faults and figures of entries
notation_queries   entries evaluated on a graph, and converted to and from queries
notation_files     checks of a whole file
"""
