"""A document of our own, and what is asked about it."""

from __future__ import annotations

from rapid_core import Sampling

THINGS, PLACES = "key lamp rope chart map boat seal bell".split(), "house ship tower mill barn yard".split()
DOCUMENT = "\n\n".join(f"The {a} of the {b} is kept in room {len(a) * len(b)}." for a in THINGS for b in PLACES)
QUESTION = "Where is the map of the barn?"
ANSWERS = ("room 3", "in the yard", "nobody knows")
SHORT = Sampling(max_new_tokens=24)
WINDOW = {"max_position_embeddings": 8192}
