"""Inverted questions: several loose facts that one entity alone has (BrowseComp's form).

"It is easy to verify but hard to find" (Wei et al. 2025, "BrowseComp", arXiv:2504.12516): the
question starts from the answer, and names properties that many entities have, whose conjunction
only one has. Values are obscured as in BrowseComp and WebShaper: a decade for a year, a range for a
number, and in the place of a name what is true of the named.

clues      facts as a solver reads them, and which entities have them
drawing    conjunctions with one answer, none of whose facts can be left out
asking     their wording, as tasks
teaching   a teacher that looks for candidates and checks every fact
"""
