"""Documents put together again from the nodes that they were split into."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core import Document
from llama_index.core.node_parser import (
    HierarchicalNodeParser,
    SentenceSplitter,
    SentenceWindowNodeParser,
    TokenTextSplitter,
)
from llama_index.core.schema import ImageNode, IndexNode, MetadataMode, Node, NodeRelationship, TextNode
from llama_index_helpers import LEASE, SPLITTER

from rapid_integrations.llama_index.rebuilding import rebuild, shared_metadata, shown

WORDS = st.lists(st.sampled_from(["oak", "river", "stone", "crown", "mill"]), min_size=1, max_size=120)
SPACES = st.lists(st.sampled_from([" ", " ", ". ", ", ", "\n", "\n\n", "\n\n\n"]), min_size=120, max_size=120)


def bare(text):
    return "".join(text.split())


def split(text, splitter=SPLITTER, **fields):
    return splitter.get_nodes_from_documents([Document(text=text, id_="lease", **fields)])


def texts(nodes):
    return [node.get_content() for node in nodes]


def in_order(part, whole):
    rest = iter(whole)
    return all(sign in rest for sign in part)


@settings(max_examples=150, deadline=None)
@given(WORDS, SPACES, st.integers(12, 90), st.floats(0, 0.5), st.sampled_from([SentenceSplitter, TokenTextSplitter]))
def test_what_splitters_made_of_a_text_becomes_that_text(words, spaces, size, share, splitter):
    numbered = "".join(f"{word}{n}{space}" for n, (word, space) in enumerate(zip(words, spaces, strict=False)))
    nodes = split(numbered, splitter(chunk_size=size, chunk_overlap=int(size * share)))
    rebuilt = rebuild(nodes)
    if not rebuilt.notes:
        assert bare(rebuilt.text) == bare(numbered)
    assert in_order(bare(numbered), bare(rebuilt.text))
    if share < 0.2 and size > 40:
        assert not rebuilt.notes


@settings(max_examples=100, deadline=None)
@given(WORDS, SPACES, st.integers(12, 90), st.sampled_from([SentenceSplitter, TokenTextSplitter]))
def test_a_text_that_repeats_itself_loses_nothing(words, spaces, size, splitter):
    text = "".join(f"{word}{space}" for word, space in zip(words, spaces, strict=False))
    rebuilt = rebuild(split(text, splitter(chunk_size=size, chunk_overlap=0)))
    assert in_order(bare(text), bare(rebuilt.text))


def test_a_document_is_rebuilt_character_by_character_where_nodes_overlap():
    text = " ".join(f"Sentence number {n} is here." for n in range(60))
    rebuilt = rebuild(split(text))
    assert rebuilt.text == text and not rebuilt.notes


def test_the_order_of_the_store_does_not_matter_and_a_node_that_is_there_twice_counts_once():
    nodes = split(LEASE)
    assert len(nodes) > 5
    assert rebuild([*nodes[::-1], nodes[2]]).text == LEASE


def test_a_missing_node_is_told_with_its_characters():
    nodes = split(LEASE, SentenceSplitter(chunk_size=60, chunk_overlap=0))
    lost = nodes.pop(3)
    rebuilt = rebuild(nodes)
    (note,) = rebuilt.notes
    assert int(note.split()[0]) in range(len(lost.text), len(lost.text) + 5) and "in none of the stored nodes" in note
    assert bare(rebuilt.text) == bare(LEASE.replace(lost.text, ""))


def test_a_missing_beginning_and_a_missing_end_are_told():
    nodes = split(LEASE)
    assert rebuild(nodes[1:]).notes == (f"{nodes[1].start_char_idx} of its characters are in none of the stored nodes",)
    assert rebuild(nodes[:-1]).notes == ("its end is in none of the stored nodes",)


def test_a_single_node_is_a_document():
    assert rebuild([TextNode(text="All of it.")]).text == "All of it."
    assert rebuild([TextNode(text="All of it.")]).notes == ()
    (whole,) = split("All of it.")
    assert rebuild([whole]).text == "All of it." and rebuild([whole]).notes == ()
    alone = split(LEASE)[3]
    assert rebuild([alone]).text == alone.text and len(rebuild([alone]).notes) == 2


def test_of_a_hierarchy_the_largest_nodes_are_read():
    nodes = HierarchicalNodeParser.from_defaults([200, 60]).get_nodes_from_documents(
        [Document(text=LEASE, id_="lease")]
    )
    rebuilt = rebuild(nodes)
    assert rebuilt.text == LEASE and not rebuilt.notes
    assert {node.node_id for node in rebuilt.nodes} == {node.node_id for node in nodes if node.parent_node is None}


def test_offsets_relative_to_a_parent_that_is_not_stored_give_way_to_the_links():
    nodes = HierarchicalNodeParser.from_defaults([200, 60]).get_nodes_from_documents(
        [Document(text=LEASE, id_="lease")]
    )
    leaves = [node for node in nodes if node.parent_node is not None]
    rebuilt = rebuild(leaves)
    assert rebuilt.text == "\n\n".join(texts(leaves))
    assert "their links" in rebuilt.notes[0]


def test_texts_that_were_changed_after_the_split_follow_each_other_by_their_links():
    nodes = split(LEASE)
    for node in nodes:
        node.text = node.text.upper() + "!"
    rebuilt = rebuild([*nodes[4:], *nodes[:4]])
    assert rebuilt.text == "\n\n".join(texts(nodes))
    assert rebuilt.notes[0].startswith(f"its {len(nodes)} nodes do not say where their texts stand")
    assert "2 of the neighbours" in rebuild([*nodes[:3], *nodes[4:]]).notes[1]


def test_one_changed_text_is_no_overlap_to_cut():
    nodes = split(LEASE)
    nodes[2].text = nodes[2].text.swapcase()
    rebuilt = rebuild(nodes)
    assert all(text in rebuilt.text for text in texts(nodes)) and "their links" in rebuilt.notes[0]


def test_without_links_and_offsets_the_order_is_that_of_the_store():
    nodes = [TextNode(text=text) for text in ("one", "two", "three")]
    assert rebuild(nodes).text == "one\n\ntwo\n\nthree" and len(rebuild(nodes).notes) == 1


def test_links_in_a_circle_end():
    one, two = TextNode(text="one", id_="1"), TextNode(text="two", id_="2")
    for node, other in ((one, two), (two, one)):
        node.relationships[NodeRelationship.NEXT] = other.as_related_node_info()
    assert rebuild([one, two]).text == "one\n\ntwo"


def test_a_sentence_that_is_repeated_keeps_its_place():
    text = "He said yes twice. Yes. No. He said yes twice. Yes. Yes. That was all."
    nodes = split(text, SentenceWindowNodeParser.from_defaults())
    assert bare(rebuild(nodes).text) == bare(text) and not rebuild(nodes).notes


def test_a_short_last_node_that_stands_in_the_one_before_it_is_not_dropped():
    text = "At last the end is near. The tale goes on, and on, and on.\n\n\nthe end"
    nodes = split(text, SentenceSplitter(chunk_size=18, chunk_overlap=0))
    assert texts(nodes)[-1] == "the end" and nodes[-1].start_char_idx < 40
    rebuilt = rebuild(nodes)
    assert rebuilt.text.endswith("on.\nthe end") and "is not certain" in rebuilt.notes[0]


def chain(*pieces):
    """Nodes that follow each other, with the offsets at which a parser finds them."""
    nodes = [TextNode(text=text, start_char_idx=start, end_char_idx=start + len(text)) for text, start in pieces]
    for one, two in pairwise(nodes):
        one.relationships[NodeRelationship.NEXT] = two.as_related_node_info()
        two.relationships[NodeRelationship.PREVIOUS] = one.as_related_node_info()
    return nodes


@pytest.mark.parametrize(
    ("pieces", "text", "uncertain"),
    [
        # Found in the middle of the node before it; the next node begins where it ends behind that one.
        ((("I say yes, twice.", 0), ("yes", 6), ("So be it.", 22)), "I say yes, twice.\nyes\n\nSo be it.", 0),
        # The overlap, with white space behind it that was trimmed.
        ((("one two three", 0), ("three", 8), ("four", 16)), "one two three\n\nfour", 0),
        # The same, or the word once more: there is as much room as it takes.
        ((("I said yes", 0), ("yes", 7), ("So be it.", 15)), "I said yes\nyes\n\nSo be it.", 1),
        # Found too early in a text of which only the beginning of the next node is an overlap, or none.
        ((("la la la", 0), ("la la la", 3)), "la la la\nla la la", 1),
        ((("la la la", 0), ("la la la", 3), ("la end", 15)), "la la la\nla la la\nla end", 2),
    ],
)
def test_a_node_that_was_found_too_early_goes_behind_the_one_before_it(pieces, text, uncertain):
    rebuilt = rebuild(chain(*pieces))
    assert rebuilt.text == text
    assert [note.split(" of its nodes")[0] for note in rebuilt.notes] == [f"the place of {uncertain}"] * bool(uncertain)


def test_nodes_of_two_chunk_sizes_are_compared_with_their_own_neighbours():
    nodes = [*chain(("a1a b2b c3c", 0), ("c3c d4d", 8)), *chain(("a1a", 0), ("b2b", 4), ("c3c", 8), ("d4d", 12))]
    assert rebuild(nodes).text == "a1a b2b c3c d4d" and not rebuild(nodes).notes


def test_a_document_that_was_split_twice_is_there_once():
    large = split(LEASE, SentenceSplitter(chunk_size=150, chunk_overlap=20))
    small = split(LEASE, SentenceSplitter(chunk_size=60, chunk_overlap=20))
    rebuilt = rebuild([*small, *large])
    assert rebuilt.text == LEASE and not rebuilt.notes


def test_an_overlap_that_takes_in_a_whole_node_is_cut():
    one = TextNode(text="Title.", id_="1", start_char_idx=0, end_char_idx=6)
    two = TextNode(text="Title. The long paragraph.", id_="2")
    one.relationships[NodeRelationship.NEXT] = two.as_related_node_info()
    two.relationships[NodeRelationship.PREVIOUS] = one.as_related_node_info()
    assert rebuild([one, two]).text == "Title. The long paragraph." and not rebuild([one, two]).notes


def test_images_are_left_out_with_a_word_and_pointers_and_empty_nodes_without():
    nodes = [
        TextNode(text="A text."),
        ImageNode(text="a caption", image_url="https://example.org/a.png"),
        IndexNode(text="a summary", index_id="elsewhere"),
        TextNode(text=" "),
    ]
    assert rebuild(nodes).text == "A text." and rebuild(nodes).notes == ("1 of its nodes are images and were left out",)
    assert rebuild(nodes[1:]).text == ""


def test_nodes_of_the_newer_class_are_read_too():
    nodes = [Node(id_=str(n)) for n in range(2)]
    for node, text in zip(nodes, ("one", "two"), strict=True):
        node.set_content(text)
    assert rebuild(nodes).text == "one\n\ntwo"


# What a model reads of the metadata


def test_metadata_that_all_nodes_share_stands_once_at_the_top():
    metadata = {"author": "Kay", "file_path": "/lease", "secret": "17"}
    nodes = split(LEASE, metadata=metadata, excluded_llm_metadata_keys=["secret"])
    for n, node in enumerate(nodes):
        node.metadata["page_label"] = str(n)
    assert shared_metadata(nodes) == metadata
    assert shown(LEASE, nodes, MetadataMode.LLM) == f"author: Kay\nfile_path: /lease\n\n{LEASE}"
    assert shown(LEASE, nodes, MetadataMode.EMBED).startswith("author: Kay\nfile_path: /lease\nsecret: 17\n\n")
    assert shown(LEASE, nodes, MetadataMode.NONE) == LEASE


def test_the_templates_of_the_first_node_are_kept():
    templates = {"metadata_template": "<{key}={value}>", "metadata_separator": "|"}
    nodes = split(LEASE, metadata={"a": 1, "b": 2}, **templates, text_template="{metadata_str}::{content}")
    assert shown("{text}", nodes, MetadataMode.LLM) == "<a=1>|<b=2>::{text}"
