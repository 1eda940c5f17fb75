"""Short dialogues whose turns are scattered in a long chat, and whose last question is asked at its end.

Source: paper (dialogues of MT-Bench-101 in a history of 122,000 tokens, judged by a model). A history holds
several of them here, so that it is read once for all their questions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rapid_core.datatypes import LongHistory, Message
from rapid_core.errors import DocumentError
from rapid_core.evaluation.judge import HIGHEST, NoScoreError
from rapid_core.evaluation.metrics import rouge_l_sum
from rapid_core.evaluation.records import Question
from rapid_core.evaluation.tasks.folder import parse_dialogue, read_turns
from rapid_core.evaluation.tasks.lines import Line, data_file, read_lines
from rapid_core.evaluation.tasks.local import SelectedQuestions
from rapid_core.evaluation.tasks.long_chat import Exchange, exchanges, long_chat
from rapid_core.evaluation.tasks.task import TaskOptions
from rapid_core.extras import check_installed

FILE = "mtbench101_sample.jsonl"
NAME = "scattered-dialogue"
HISTORY_TOKENS = 122_000
MAX_NEW_TOKENS = 256
# What a judge gives.
METRIC = "judge"
WITHOUT_JUDGE = (
    f"No judge is given for {NAME!r}: answers are compared with references by ROUGE-L-Sum alone, and kept, so that "
    "they can be judged later (CLI: --report-only with --judge-url and --judge-model)."
)
# Dialogues in a history: so many at most, and together this part of its tokens, so that they stay scattered.
MOST_TOGETHER = 8
PART = 4


@dataclass(frozen=True, slots=True)
class Short:
    """A short dialogue: the exchanges that are scattered, then the question and its reference."""

    id: str
    earlier: tuple[Exchange, ...]
    question: Message
    reference: Message

    @property
    def tokens(self) -> int:
        """Of what is scattered."""
        return sum(exchange.tokens for exchange in self.earlier)


class ScatteredDialogue(SelectedQuestions):
    """Scores an answer by a judge where there is one, and by ROUGE-L-Sum against the dialogue's own last turn.

    Histories have `max_document_tokens` of text, or 122,000, as far as there are chats to fill them: those in
    dialogues/*.json, then other short dialogues. Without `count_tokens` words stand for tokens. The judge
    sees the short dialogue alone.
    """

    def __init__(self, options: TaskOptions) -> None:
        # Before any model is loaded, and not behind the first answer.
        check_installed("rouge_score", *(["httpx"] if options.judge else []), extra="eval")
        count = options.count_tokens or _count_words
        path = data_file(options.data, FILE, NAME)
        shorts, notes = read_lines(path, lambda line: [_read_short(line, count)], skip_bad=options.skip_bad)
        chats = _read_chats(path.parent / "dialogues", count)
        questions, more = _scatter(shorts, chats, options.max_document_tokens or HISTORY_TOKENS, options.seed)
        # No history is too long: they are made to that length.
        super().__init__(NAME, questions, [*notes, *more], replace(options, max_document_tokens=None))
        self._shorts = {_question_id(short): short for short in shorts}
        self._judge = options.judge
        self.metrics: Mapping[str, str] = {"rouge_l_sum": "ROUGE-L-Sum"}
        if options.count_tokens is None:
            self.notes.append("Words stand for tokens, since nothing is given to count tokens with.")
        if self._judge is None:
            self.notes.append(WITHOUT_JUDGE)
        else:
            self.metrics = {METRIC: f"judge's score, in percent of {HIGHEST}", **self.metrics}

    def score(self, question: Question, text: str, likelihoods: Sequence[float] | None) -> dict[str, float]:  # noqa: ARG002
        """An answer to which the judge gives no score has none, and a note says so.

        Raises `JudgeError` where nobody can be asked.
        """
        scores = {"rouge_l_sum": rouge_l_sum(text, question.references)}
        if self._judge is None:
            return scores
        short = self._shorts[question.id]
        earlier = [message for exchange in short.earlier for message in exchange.messages]
        try:
            judged = self._judge.score([*earlier, short.question], short.reference.content, text)
        except NoScoreError as error:
            self.notes.append(f"{not_judged(question.id)}: {error}.")
            return scores
        return {METRIC: judged / HIGHEST, **scores}


def not_judged(question: str) -> str:
    """How a note begins that says why an answer to the question of this id has no judge's score."""
    return f"An answer to {question!r} is not judged"


def _read_short(line: Line, count_tokens: Callable[[str], int]) -> Short:
    turns = read_turns(line.fields.get("turns")) or ()
    made = exchanges(turns, count_tokens)
    if len(made) < 2 or [speaker for speaker, _ in turns] != ["user", "assistant"] * len(made):
        raise line.bad("'turns' must be a list in which user and assistant take turns, two or more of each")
    question, reference = made[-1].messages
    if not question.content.strip() or not reference.content.strip():
        raise line.bad("the last question and its reply in 'turns' must not be empty")
    return Short(line.text("id"), made[:-1], question, reference)


def _read_chats(folder: Path, count_tokens: Callable[[str], int]) -> list[tuple[Exchange, ...]]:
    """The chats of a user and an assistant in the files of a folder; meetings are none."""
    chats = []
    for path in sorted(folder.glob("*.json")):
        try:
            dialogue = parse_dialogue(path.read_bytes().decode("utf-8"))
        except OSError as error:
            raise DocumentError(f"cannot read {path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise DocumentError(f"a dialogue must be UTF-8 text, {path} is not ({error}); mend the file") from error
        except ValueError as error:
            raise DocumentError(f"{path} {error}; mend the file") from error
        if dialogue.is_chat:
            chats.append(exchanges(dialogue.turns, count_tokens))
    return chats


def _scatter(
    shorts: Sequence[Short], chats: Sequence[tuple[Exchange, ...]], tokens: int, seed: int
) -> tuple[list[Question], list[str]]:
    """The questions of the short dialogues, behind histories of `tokens` tokens, and what there is to say of them."""
    draw = random.Random(str(seed))
    groups = _together(draw.sample(shorts, len(shorts)), tokens // PART)
    questions: list[Question] = []
    lengths: list[int] = []
    for number, group in enumerate(groups):
        others = [short for short in shorts if short not in group]
        # Chats go first: there is more of one subject in them, and less that a question could mean, too.
        filling = [
            *(exchange for chat in draw.sample(chats, len(chats)) for exchange in chat),
            *(exchange for other in draw.sample(others, len(others)) for exchange in other.earlier),
        ]
        history, length = long_chat([short.earlier for short in group], filling, tokens, draw)
        lengths.append(length)
        questions += [
            Question(
                id=_question_id(short),
                task=NAME,
                document=f"{NAME}/{number}",
                messages=(*history, short.question),
                context=LongHistory(),
                references=(short.reference.content,),
                source="MT-Bench-101",
                max_new_tokens=MAX_NEW_TOKENS,
            )
            for short in group
        ]
    notes = []
    if len(questions) < len(shorts):
        notes.append(
            f"Dialogues of more than {tokens // PART:,} tokens, a quarter of a history, are left out: "
            f"{len(shorts) - len(questions):,} of {len(shorts):,}."
        )
    if lengths:
        notes.append(
            f"{len(questions):,} dialogues are scattered in {len(groups):,} histories of {min(lengths):,} to "
            f"{max(lengths):,} tokens, {tokens:,} at most (seed {seed})."
        )
    return questions, notes


def _together(shorts: Sequence[Short], tokens: int) -> list[list[Short]]:
    """Dialogues in groups, one a history, each of at most `tokens` tokens; longer dialogues are in none."""
    groups: list[list[Short]] = []
    for short in shorts:
        if short.tokens > tokens:
            continue
        last = groups[-1] if groups else []
        if not last or len(last) == MOST_TOGETHER or sum(other.tokens for other in last) + short.tokens > tokens:
            groups.append([short])
        else:
            last.append(short)
    return groups


def _count_words(text: str) -> int:
    return len(text.split())


def _question_id(short: Short) -> str:
    return f"{NAME}/{short.id}"
