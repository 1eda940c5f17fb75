"""How strong the transfer is with eta="auto": by how much the passages keep of what the document tells.

    gain  = log-probability of the question in a prompt, less that in the same prompt without the text
    share = gain of the passages, by the drafter / max(gain of the document, by the target; LEAST_GAIN)
    eta   = LARGEST_AUTO_ETA · (share - LEAST_SHARE) / (1 - LEAST_SHARE), cut to 0 and LARGEST_AUTO_ETA

A text that a question can be asked about makes it more probable: the query-likelihood model of
retrieval (Ponte and Croft, 1998), with a language model as in Sachan et al. (2022). The document
makes it so by what it holds; passages that were chosen well keep all of that, often more since
nothing distracts, and unrelated ones keep nothing. It needs no encoder, so that it judges passages of
the caller, too.

It is known before the first token and fixed for the answer, so that the law of
`rapid_core.verification` holds with this eta. Figures, and what did not work, are in docs/notes.md.
"""

from __future__ import annotations

from dataclasses import dataclass

# The largest eta that "auto" chooses.
LARGEST_AUTO_ETA = 10.0
# Passages that keep no more than this share of the document's gain transfer nothing.
LEAST_SHARE = 0.5
# In nats. Where the document itself gains less, the question says too little of what it is about.
LEAST_GAIN = 8.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the passages before decoding.

    document: nats by which the target finds the question more probable with the document than
    without. passages: the same for the drafter and its passages. Both may be below 0.
    """

    document: float
    passages: float

    @property
    def share(self) -> float:
        """How much of what the document tells about the question the passages tell; it may be over 1, or below 0."""
        return self.passages / max(self.document, LEAST_GAIN)


def auto_eta(evidence: Evidence | None) -> float:
    """The eta for passages of this worth, 0 to `LARGEST_AUTO_ETA`; 0 where nothing is known of them."""
    if evidence is None:
        return 0.0
    return LARGEST_AUTO_ETA * min(max((evidence.share - LEAST_SHARE) / (1 - LEAST_SHARE), 0.0), 1.0)


def in_words(evidence: Evidence | str) -> str:
    """What `auto_eta` chose, and why; of a text that says why nothing is known, that it chose 0."""
    if isinstance(evidence, str):
        return f"eta='auto': 0, as nothing tells what the passages are worth: {evidence}"
    eta = auto_eta(evidence)
    return (
        f"eta='auto': {eta:.1f} of {LARGEST_AUTO_ETA:g}, as the passages make the question {_nats(evidence.passages)} "
        f"probable to the drafter, and the document {_nats(evidence.document)} to the target"
    )


def _nats(gain: float) -> str:
    return f"{abs(gain):.1f} nats {'more' if gain >= 0 else 'less'}"
