"""The text of a document, put together again from the nodes that it was split into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from llama_index.core.schema import (
    BaseNode,
    ImageNode,
    IndexNode,
    MetadataMode,
    NodeRelationship,
    RelatedNodeInfo,
    TextNode,
)

SEPARATOR = "\n\n"
# Splitters trim white space at the ends of nodes; a gap that is wider than this had text in it.
WIDEST_TRIM = 16


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A text, the nodes that it was made of, and sentences about what is not whole or not certain."""

    text: str
    nodes: tuple[BaseNode, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Span:
    """A node's text and where it stands; `before` and `after` are ids of its neighbours, "" for none."""

    id: str
    text: str
    start: int
    before: str
    after: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def rebuild(nodes: Sequence[BaseNode]) -> Rebuilt:
    """One document from its nodes, each once, in order, without the overlaps.

    nodes: as stored, of one document. What the offsets say holds where the texts agree with it;
    else the links between the nodes give their order. Empty where no node has text.
    """
    notes = []
    if pictures := sum(isinstance(node, ImageNode) for node in nodes):
        notes.append(f"{pictures} of its nodes are images and were left out")
    used = _used(nodes)
    if not used:
        return Rebuilt("", ())
    spans, known = _spans(used), {node.node_id for node in nodes}
    apart = [node for node in used if node.node_id not in spans and _stands_apart(node)]
    if spans and apart:
        notes.append(f"{len(apart)} of its nodes have no place in it, as summaries have none, and were left out")
        used = [node for node in used if node not in apart]
    laid = _by_offsets(spans, known) if len(spans) == len(used) else None
    if laid is None and len(used) == 1:
        laid = used[0].get_content(metadata_mode=MetadataMode.NONE), _loose_ends(used, known)
    text, more = laid or _by_links(used, known)
    return Rebuilt(text, tuple(used), (*notes, *more))


def _used(nodes: Sequence[BaseNode]) -> list[BaseNode]:
    """Nodes with text, each once; what a parent among them holds as well is left out, and so are pointers."""
    unique = {
        node.node_id: node
        for node in nodes
        if not isinstance(node, (ImageNode, IndexNode)) and node.get_content(metadata_mode=MetadataMode.NONE).strip()
    }
    return [node for node in unique.values() if _link(node, NodeRelationship.PARENT) not in unique]


def _stands_apart(node: BaseNode) -> bool:
    """Whether nothing says where it stands: a text about the document, and not of it."""
    linked = _link(node, NodeRelationship.PREVIOUS) or _link(node, NodeRelationship.NEXT)
    return getattr(node, "start_char_idx", None) is None and not linked


def _spans(nodes: Sequence[BaseNode]) -> dict[str, _Span]:
    """Where nodes stand, by their ids; those whose offsets are missing, or do not fit the text, are left out."""
    spans: dict[str, _Span] = {}
    waiting: list[_Span] = []
    for node in nodes:
        text = node.get_content(metadata_mode=MetadataMode.NONE)
        start, end = (getattr(node, name, None) for name in ("start_char_idx", "end_char_idx"))
        before, after = _link(node, NodeRelationship.PREVIOUS), _link(node, NodeRelationship.NEXT)
        if isinstance(start, int) and isinstance(end, int) and end - start == len(text):
            spans[node.node_id] = _Span(node.node_id, text, start, before, after)
        elif start is None:
            waiting.append(_Span(node.node_id, text, 0, before, after))
    # A parser looks for a node's text behind the start of the one before it, and does not find one
    # that starts at the same place: an overlap that took in the whole of a short node.
    for span in waiting:
        before_it = spans.get(span.before)
        if before_it is not None and span.text.startswith(before_it.text):
            spans[span.id] = replace(span, start=before_it.start)
    return spans


def _by_offsets(spans: dict[str, _Span], known: set[str]) -> tuple[str, list[str]] | None:
    """The text and notes about it; None where two nodes claim the same place with different texts.

    A text that is repeated in the document may have been found too early. Such a node goes whole
    behind the one before it: a part of the text may then be there twice, and none is lost.
    """
    ordered = sorted(spans.values(), key=lambda span: (span.start, -span.end))
    text, end = ordered[0].text, ordered[0].end
    missing = ordered[0].start if ordered[0].start > WIDEST_TRIM else 0
    # Of the nodes that were moved since the last one in its place, how many must stand where they
    # now stand if the next one begins where they end.
    shifted, confirmable, uncertain = False, 0, 0
    for placed, span in pairwise(ordered):
        overlap = end - span.start
        before, room = _neighbours(span, placed, spans, end)
        # Nodes of another chunk size may hold the same text; a node is compared with the one before it.
        shared = overlap if shifted or before is None else before.end - span.start
        agrees = text.startswith(span.text[:overlap], max(len(text) - overlap, 0))
        if overlap <= 0:
            if -overlap > WIDEST_TRIM:
                missing -= overlap
            else:
                uncertain -= confirmable
            text += _white(-overlap) + span.text
            end, shifted, confirmable = span.end, False, 0
        elif (before is not None and _misplaced(span, before, shared, room)) or (shifted and not agrees):
            text += "\n" + span.text
            end += len(span.text)
            confirmable += before is None or span.end != before.end
            shifted, uncertain = True, uncertain + 1
        elif not agrees:
            return None
        else:
            text += span.text[overlap:]
            end = max(end, span.end)
    notes = []
    if (after := max(ordered, key=lambda span: span.end).after) and after not in known:
        notes.append("its end is in none of the stored nodes")
    if missing:
        notes.append(f"{missing} of its characters are in none of the stored nodes")
    if uncertain:
        notes.append(
            f"the place of {uncertain} of its nodes is not certain, since their text is repeated; each follows the "
            "node before it, and may repeat a part of it"
        )
    return text, notes


def _neighbours(span: _Span, placed: _Span, spans: dict[str, _Span], end: int) -> tuple[_Span | None, int | None]:
    """The node before a node, and how many characters there are from `end` to the one after it.

    Without links, the node before is the one that was placed last.
    """
    if not span.before and not span.after:
        return placed, None
    after = spans.get(span.after)
    return spans.get(span.before), None if after is None else after.start - end


def _misplaced(span: _Span, before: _Span, overlap: int, room: int | None) -> bool:
    """Whether a text that was found inside the one before it belongs, or may belong, behind it."""
    if overlap <= 0:
        return False
    if before.start < span.start and span.end <= before.end:
        # With white space behind it an overlap can make a node; one that is followed by as much
        # as it holds does not need to be that.
        return span.end < before.end or room is None or room >= len(span.text)
    # A text stands at two places that overlap if it repeats itself at that distance.
    text, period = span.text, span.text.find(span.text[0], 1)
    while 0 < period <= overlap + WIDEST_TRIM:
        if text.startswith(text[period:]):
            return period <= overlap or text[overlap:period].isspace()
        period = text.find(text[0], period + 1)
    return False


def _white(width: int) -> str:
    """White space in the place of what a splitter trimmed."""
    return SEPARATOR if width > 1 else " " * width


def _by_links(nodes: Sequence[BaseNode], known: set[str]) -> tuple[str, list[str]]:
    """The texts of nodes as they follow each other, by their links and else as stored."""
    by_id = {node.node_id: node for node in nodes}
    following: dict[str, BaseNode] = {}
    for node in nodes:
        if after := by_id.get(_link(node, NodeRelationship.NEXT)):
            following[node.node_id] = after
    for node in nodes:
        if (before := _link(node, NodeRelationship.PREVIOUS)) in by_id:
            following.setdefault(before, node)
    followers = {node.node_id for node in following.values()}
    ordered: dict[str, str] = {}
    # Links that run in a circle have no first node; their nodes come last.
    for first in (*(node for node in nodes if node.node_id not in followers), *nodes):
        current: BaseNode | None = first
        while current is not None and current.node_id not in ordered:
            ordered[current.node_id] = current.get_content(metadata_mode=MetadataMode.NONE)
            current = following.get(current.node_id)
    note = (
        f"its {len(nodes)} nodes do not say where their texts stand, or contradict each other; they follow each other "
        "by their links, and else as stored, and where they overlap the text is there twice"
    )
    return SEPARATOR.join(ordered.values()), [note, *_loose_ends(nodes, known)]


def _loose_ends(nodes: Sequence[BaseNode], known: set[str]) -> list[str]:
    ends = sum(
        bool(link) and link not in known
        for node in nodes
        for link in (_link(node, NodeRelationship.PREVIOUS), _link(node, NodeRelationship.NEXT))
    )
    return [f"{ends} of the neighbours that its nodes name are not stored, and their text is missing"] if ends else []


def _link(node: BaseNode, relationship: NodeRelationship) -> str:
    related = node.relationships.get(relationship)
    return related.node_id if isinstance(related, RelatedNodeInfo) else ""


def shared_metadata(nodes: Sequence[BaseNode]) -> dict[str, Any]:
    """What the metadata of all nodes says alike, in the first one's order."""
    first, *others = (node.metadata for node in nodes)
    return {key: value for key, value in first.items() if all(key in other and other[key] == value for other in others)}


def shown(text: str, nodes: Sequence[BaseNode], metadata_mode: MetadataMode) -> str:
    """A document's text as a model reads it: what its nodes say of it alike stands once at the top."""
    first = nodes[0]
    if len(nodes) == 1:
        return first.get_content(metadata_mode=metadata_mode)
    whole = TextNode(
        text=text,
        metadata=shared_metadata(nodes),
        excluded_embed_metadata_keys=first.excluded_embed_metadata_keys,
        excluded_llm_metadata_keys=first.excluded_llm_metadata_keys,
        metadata_template=first.metadata_template,
        metadata_separator=first.metadata_separator,
    )
    whole.text_template = getattr(first, "text_template", whole.text_template)
    return whole.get_content(metadata_mode=metadata_mode)
