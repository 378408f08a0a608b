"""Inverted questions: several loose facts that only one entity has (BrowseComp's form).

An answer is easy to verify but hard to find (Wei et al. 2025, "BrowseComp", arXiv:2504.12516): the
question is made from the answer, and lists properties that many entities have but only one has
together. Values are obscured as in BrowseComp and WebShaper: a decade for a year, a range for a
number, and a property of an entity instead of its name.

clues      facts as a solver reads them, and the entities that have them
drawing    conjunctions of facts with one answer, in which every fact is needed
asking     the wording of the questions, as tasks
teaching   a teacher that looks for candidates and checks every fact
"""
