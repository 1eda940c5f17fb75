"""Several documents joined into a longer one, with the questions of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rapid_core.datatypes import LongContext
from rapid_core.evaluation.records import Question
from rapid_core.evaluation.tasks.folder import Folder
from rapid_core.evaluation.tasks.lines import Line, data_file, read_lines
from rapid_core.evaluation.tasks.task import TaskOptions

FILE = "packs.jsonl"
BETWEEN = "\n\n"
# What packs are made of, by what lines call it.
_PACKED = ("long_qa", "long_mc")


def pack(
    task: str, made_of: str, questions: Sequence[Question], notes: Sequence[str], folder: Folder, options: TaskOptions
) -> tuple[str, list[Question], list[str]]:
    """Name, questions and notes of the task whose `questions` are asked about packs.

    made_of: the file of the questions, as packs name it. A question that stands in several packs is asked
    of each, with the pack's id before its own.
    """
    name = f"{task}-packed"
    path = data_file(options.data, FILE, name)
    by_id = {question.id: question for question in questions}
    found, more = read_lines(path, lambda line: _read(line, folder, by_id, name, made_of), skip_bad=options.skip_bad)
    return name, found, [*notes, *more]


def _read(line: Line, folder: Folder, by_id: dict[str, Question], name: str, made_of: str) -> Iterable[Question]:
    id_ = line.text("id")
    if line.one_of("task", _PACKED) != made_of:
        return
    documents, items = line.texts("document_ids"), line.texts("item_ids")
    for several in (documents, items):
        if len(set(several)) < len(several):
            raise line.bad(f"a pack must name each of its documents and questions once, got {', '.join(several)}")
    texts = {document: folder.document(line, document) for document in documents}
    starts: dict[str, int] = {}
    end = 0
    for document, text in texts.items():
        starts[document] = end
        end += len(text) + len(BETWEEN)
    joined = BETWEEN.join(texts.values())
    for item in items:
        question = by_id.get(item)
        if question is None or question.document not in starts:
            raise line.bad(
                f"'item_ids' has {item!r}, which is no question about one of its documents in {made_of}.jsonl"
            )
        # The tasks that are packed ask about documents.
        assert isinstance(question.context, LongContext)
        start, evidence = starts[question.document], question.evidence
        yield replace(
            question,
            id=f"{id_}/{item}",
            task=name,
            document=id_,
            context=replace(question.context, text=joined),
            evidence=None if evidence is None else (start + evidence[0], start + evidence[1]),
        )
