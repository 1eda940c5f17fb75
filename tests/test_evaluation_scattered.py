"""Short dialogues scattered in a long chat: what stands where, and how answers are scored."""

import json
import random

import pytest
from judge_server import Server, says

from rapid_core import LongHistory, Sampling, Speculation
from rapid_core.errors import BadLineError, DocumentError, InputError
from rapid_core.evaluation.judge import Judge, JudgeError, NoScoreError
from rapid_core.evaluation.tasks import TaskOptions, load_tasks
from rapid_core.evaluation.tasks.long_chat import exchanges, long_chat
from rapid_core.testing import tiny_engine

NAME = "scattered-dialogue"


def turn(role, content):
    return {"role": role, "content": content}


def short(name, exchanges=3):
    """A dialogue whose turns name it: "ask a 0", "reply a 0"; eight words an exchange."""
    turns = []
    for number in range(exchanges):
        turns += [turn("user", f"ask {name} {number} ?"), turn("assistant", f"reply {name} {number} .")]
    return {"id": name, "task": "CM", "turns": turns}


def chat(name, exchanges):
    return {"id": name, "turns": short(name, exchanges)["turns"]}


def count_words(text):
    return len(text.split())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "dialogues").mkdir()
    lines = [json.dumps(short(f"s{number}", 3 + number % 3)) for number in range(20)]
    (tmp_path / "mtbench101_sample.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for name in ("c0", "c1"):
        (tmp_path / "dialogues" / f"{name}.json").write_text(json.dumps(chat(name, 100)), encoding="utf-8")
    meeting = {"id": "m", "turns": [turn("Chair", "Let us begin."), turn("Clerk", "Yes.")]}
    (tmp_path / "dialogues" / "m.json").write_text(json.dumps(meeting), encoding="utf-8")
    return tmp_path


def load(folder, **options):
    [task] = load_tasks([NAME], TaskOptions(**{"data": folder, "count_tokens": count_words, **options}))
    return task


def told(question):
    """What the history says, by dialogue: the numbers of its exchanges in their order."""
    numbers = {}
    for message in question.messages[:-1]:
        kind, name, number, _ = message.content.split()
        numbers.setdefault((kind, name), []).append(int(number))
    return numbers


def test_a_question_is_the_last_user_turn_and_its_reference_the_reply(folder):
    for question in load(folder, max_document_tokens=800).questions():
        name = question.id.removeprefix(f"{NAME}/")
        count = 3 + int(name[1:]) % 3
        assert question.messages[-1].content == f"ask {name} {count - 1} ?"
        assert question.references == (f"reply {name} {count - 1} .",)
        assert question.context == LongHistory()


def test_all_earlier_turns_stand_in_the_history_in_their_order_and_the_last_ones_do_not(folder):
    questions = load(folder, max_document_tokens=800).questions()
    assert len(questions) == 20
    for question in questions:
        name = question.id.removeprefix(f"{NAME}/")
        earlier = list(range(2 + int(name[1:]) % 3))
        numbers = told(question)
        assert numbers["ask", name] == numbers["reply", name] == earlier
        # No dialogue gives the reply to its own question away, nor to one that is asked elsewhere.
        for kind, other in numbers:
            if other.startswith("s"):
                assert numbers[kind, other] == list(range(2 + int(other[1:]) % 3))


def test_user_and_assistant_take_turns_all_the_way(folder):
    for question in load(folder, max_document_tokens=800).questions():
        roles = [message.role for message in question.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        for asks, reply in zip(question.messages[::2], question.messages[1::2], strict=False):
            assert asks.content.split()[1:3] == reply.content.split()[1:3]


def test_exchanges_of_a_dialogue_stand_far_apart(folder):
    for question in load(folder, max_document_tokens=1600).questions():
        name = question.id.removeprefix(f"{NAME}/")
        numbers = told(question)
        count = len(numbers["ask", name])
        length = len(question.messages) // 2
        places = [
            position // 2
            for position, message in enumerate(question.messages[:-1])
            if message.content.startswith(f"ask {name} ")
        ]
        # One in each of as many equal stretches of the filling; others that are scattered, too, shift them a little.
        assert all(
            abs(place - (index + 0.5) * length / count) <= 0.5 * length / count + 0.1 * length
            for index, place in enumerate(places)
        )


def test_questions_of_one_history_share_all_messages_before_them(folder):
    histories = {}
    for question in load(folder, max_document_tokens=800).questions():
        histories.setdefault(question.document, set()).add(question.messages[:-1])
    assert len(histories) == 3
    assert all(len(several) == 1 for several in histories.values())


@pytest.mark.parametrize("tokens", [80, 200, 800, 1600])
def test_histories_fill_the_tokens_and_never_exceed_them(folder, tokens):
    task = load(folder, max_document_tokens=tokens)
    for question in task.questions():
        length = sum(count_words(message.content) for message in question.messages[:-1])
        assert tokens - 8 < length <= tokens
    assert f"{tokens:,} at most (seed 0)." in " ".join(task.notes)


def test_no_more_than_a_quarter_of_a_history_is_asked_about(folder):
    groups = {}
    for question in load(folder, max_document_tokens=200).questions():
        name = question.id.removeprefix(f"{NAME}/")
        groups.setdefault(question.document, []).append(8 * (2 + int(name[1:]) % 3))
    assert all(sum(group) <= 50 for group in groups.values())
    assert max(len(group) for group in groups.values()) > 1


def test_dialogues_too_long_for_a_history_are_left_out_with_a_note(folder):
    # A quarter of 80 is 20: two exchanges of eight words fit, three do not.
    task = load(folder, max_document_tokens=80)
    assert len(task.questions()) == 7
    assert "Dialogues of more than 20 tokens, a quarter of a history, are left out: 13 of 20." in task.notes
    with pytest.raises(InputError, match="none is left.*Dialogues of more than 2 tokens"):
        load(folder, max_document_tokens=8)


def test_a_history_that_cannot_be_filled_is_as_long_as_its_chats_and_says_so(folder):
    task = load(folder)
    lengths = {sum(count_words(message.content) for message in question.messages[:-1]) for question in task.questions()}
    # Two chats of 100 exchanges, and the earlier exchanges of all 20 dialogues: 7 of two, 7 of three, 6 of four.
    assert lengths == {8 * (2 * 100 + 7 * 2 + 7 * 3 + 6 * 4)}
    assert "20 dialogues are scattered in 3 histories of 2,072 to 2,072 tokens, 122,000 at most (seed 0)." in task.notes


def test_the_same_seed_gives_the_same_questions_and_another_one_others(folder):
    first, again, other = (load(folder, max_document_tokens=800, seed=seed).questions() for seed in (1, 1, 2))
    assert first == again
    assert [question.messages for question in first] != [question.messages for question in other]
    assert {question.id for question in first} == {question.id for question in other}


def test_limits_take_whole_histories_and_some_of_their_questions(folder):
    task = load(folder, max_document_tokens=800, documents=1, limit=3)
    assert len(task.questions()) == 3
    assert len({question.document for question in task.questions()}) == 1
    everything = {question.id: question for question in load(folder, max_document_tokens=800).questions()}
    assert all(everything[question.id] == question for question in task.questions())


def test_turns_of_one_speaker_are_joined_and_lonely_ones_left_out():
    turns = [
        ("assistant", "Welcome."),
        ("user", "One thing ends."),
        ("user", "Another begins."),
        ("assistant", "Yes."),
        ("user", "Are you there?"),
    ]
    [exchange] = exchanges(turns, count_words)
    assert [message.content for message in exchange.messages] == ["One thing ends.\n\nAnother begins.", "Yes."]
    assert exchange.tokens == 6


def test_without_anything_between_them_dialogues_follow_each_other():
    first, second = (
        exchanges([(each["role"], each["content"]) for each in short(name)["turns"]], count_words) for name in "ab"
    )
    messages, length = long_chat([first, second], [], 1000, random.Random(0))
    assert [message.content for message in messages[::2]] == [f"ask {name} {n} ?" for name in "ab" for n in range(3)]
    assert length == 48


@pytest.mark.parametrize(
    "turns",
    [
        None,
        [],
        "text",
        [turn("user", "a")],
        short("x", 1)["turns"],
        short("x", 3)["turns"][1:],
        short("x", 3)["turns"][:-1],
        [*short("x", 2)["turns"][:3], turn("assistant", " ")],
        [turn("user", "a"), *short("x", 2)["turns"]],
        [turn("user", "a"), turn("assistant", 3), *short("x", 2)["turns"]],
    ],
)
def test_a_broken_dialogue_is_named_and_skipped_only_when_asked(folder, turns):
    path = folder / "mtbench101_sample.jsonl"
    path.write_text("\n".join(map(json.dumps, [short("a"), {"id": "b", "turns": turns}])), encoding="utf-8")
    with pytest.raises(BadLineError, match=r"line 2: .*'turns'"):
        load(folder)
    task = load(folder, skip_bad=True)
    assert [question.id for question in task.questions()] == [f"{NAME}/a"]
    assert task.notes[0].startswith("mtbench101_sample.jsonl, line 2, is left out: ")


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"[", "is no JSON"), (b"{}", "must be an object with turns"), (b"\xff", "must be UTF-8 text")],
)
def test_a_broken_chat_is_named(folder, content, problem):
    (folder / "dialogues" / "bad.json").write_bytes(content)
    with pytest.raises(DocumentError, match=rf"bad.json.*{problem}|{problem}.*bad.json"):
        load(folder)


def test_words_stand_for_tokens_where_nothing_counts_them(folder):
    by_words, counted = (load(folder, count_tokens=count) for count in (None, count_words))
    assert by_words.questions() == counted.questions()
    assert "Words stand for tokens, since nothing is given to count tokens with." in by_words.notes
    assert "Words stand for tokens" not in " ".join(counted.notes)


class Judging:
    """A judge that says or raises what it is told to, and keeps what it was asked."""

    def __init__(self, monkeypatch, *said):
        self.asked = []
        self.said = list(said)

        def score(_, conversation, reference, answer):
            self.asked.append((conversation, reference, answer))
            said = self.said.pop(0)
            if isinstance(said, Exception):
                raise said
            return said

        monkeypatch.setattr(Judge, "score", score)
        self.judge = Judge(url="http://localhost:1/v1", model="a-judge")


def test_a_judge_sees_the_short_dialogue_alone_and_gives_up_to_ten(folder, monkeypatch):
    judging = Judging(monkeypatch, 7.0)
    task = load(folder, max_document_tokens=800, judge=judging.judge)
    question = next(question for question in task.questions() if question.id == f"{NAME}/s3")
    assert list(task.metrics) == ["judge", "rouge_l_sum"]
    assert task.score(question, "reply s3 2 .", None) == {"judge": 0.7, "rouge_l_sum": 1.0}
    [(conversation, reference, answer)] = judging.asked
    said = ["ask s3 0 ?", "reply s3 0 .", "ask s3 1 ?", "reply s3 1 .", "ask s3 2 ?"]
    assert [message.content for message in conversation] == said
    assert (reference, answer) == ("reply s3 2 .", "reply s3 2 .")


def test_an_answer_without_a_score_gets_a_note_and_the_next_one_is_judged(folder, monkeypatch):
    judging = Judging(monkeypatch, NoScoreError("the judge was busy"), 10.0)
    task = load(folder, max_document_tokens=800, judge=judging.judge)
    question = task.questions()[0]
    assert set(task.score(question, "x", None)) == {"rouge_l_sum"}
    assert task.notes[-1] == f"An answer to '{question.id}' is not judged: the judge was busy."
    assert task.score(question, "x", None)["judge"] == 1.0


def test_a_judge_that_cannot_be_asked_stops_the_scoring(folder, monkeypatch):
    task = load(folder, max_document_tokens=800, judge=Judging(monkeypatch, JudgeError("no such model")).judge)
    with pytest.raises(JudgeError, match="no such model"):
        task.score(task.questions()[0], "x", None)


def test_without_a_judge_the_metric_is_left_out_and_a_note_says_so(folder):
    task = load(folder, max_document_tokens=800)
    assert list(task.metrics) == ["rouge_l_sum"]
    assert set(task.score(task.questions()[0], "x", None)) == {"rouge_l_sum"}
    assert "No judge is given for 'scattered-dialogue'" in task.notes[-1]


def test_an_engine_answers_behind_the_long_chat_and_the_judge_scores_it(folder):
    with tiny_engine(window=8192) as engine, Server(says("Score: 3")) as server:
        judge = Judge(url=server.url, model="a-judge")
        task = load(folder, count_tokens=engine.count_tokens, max_document_tokens=1500, limit=2, judge=judge)
        for question in task.questions():
            lossless, plain = (
                engine.generate(
                    question.messages,
                    context=question.context,
                    sampling=Sampling(max_new_tokens=12),
                    speculation=speculation,
                )
                for speculation in (Speculation(eta=0, gamma=4), Speculation.off())
            )
            # The target reads the chat whole, and the drafter a part of it.
            assert plain.usage.prompt_tokens > 1400
            assert 0 < lossless.stats.drafter_prompt_tokens < plain.usage.prompt_tokens
            assert lossless.text == plain.text
            assert task.score(question, lossless.text, None)["judge"] == 0.3
    assert [asked["model"] for asked in server.asked] == ["a-judge"] * 2
