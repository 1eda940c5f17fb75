"""A run of an evaluation: what it asks, what it measures, and what it does with errors."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from helpers import TINY
from run_helpers import (
    MadeTask,
    about_documents,
    about_history,
    by_setting,
    choices,
    made_engines,
    made_run,
    options,
    reasoning,
    text_of,
)

from rapid_core import LongContext, RapidEngine, Sampling, Speculation
from rapid_core.evaluation.answers_file import read_answers, read_measurements
from rapid_core.evaluation.asking import seed_of
from rapid_core.evaluation.records import Setting
from rapid_core.testing import WordEncoder, tiny_pair

LOSSLESS = ("lc", "sd", "magicdec", "lookup")
# Everything that a run can compare, on one engine.
EVERYTHING = options(
    eta=(0, 10, "auto"), gamma=3, retrieved_tokens=100, context_tokens=(300, 600), unrelated=True, temperature=1.0
)


@pytest.fixture(scope="module")
def engines():
    """One engine for all tests of this file: what is in its caches must not matter to any of them."""
    return made_engines()


# ------------------------------------------------------------------------------------------ answers


@pytest.mark.parametrize(("architecture", "seed"), [("llama", 0), ("qwen2", 1), ("llama", 2)])
def test_methods_without_transfer_give_exactly_the_answers_of_the_target_alone(tmp_path, architecture, seed):
    engines = made_engines(architecture=architecture, closeness=0.9 + 0.04 * seed)
    tasks = [
        about_documents(documents=("Spain", f"Chile {seed}"), questions=1, max_new_tokens=16),
        choices(documents=("Peru",), questions=1),
        about_history(talks=("one",)),
        reasoning(documents=("Spain",)),
    ]
    asked = options(methods=LOSSLESS, gamma=2 + seed, seed=seed)
    answers = by_setting(made_run(tmp_path, tasks, asked, engines))
    for (question, label), answer in answers.items():
        alone = answers[question, "lc"]
        assert not answer.error and answer.tokens > 0
        assert (answer.text, answer.reasoning) == (alone.text, alone.reasoning), label
        assert (answer.tokens, answer.likelihoods) == (alone.tokens, alone.likelihoods), label
        assert answer.scores == alone.scores
    assert len(answers) == 5 * 4


def test_transfer_and_the_drafter_alone_answer_otherwise(engines, tmp_path):
    asked = options(methods=("lc", "rag", "rapid"), eta=1000.0, gamma=3)
    answers = by_setting(made_run(tmp_path, [choices()], asked, engines))
    for label in ("rag", "rapid, eta 1000, gamma 3"):
        own = [answer for (_, name), answer in answers.items() if name == label]
        alone = [answers[answer.question, "lc"] for answer in own]
        assert [answer.text for answer in own] != [answer.text for answer in alone]
        assert all(mine.likelihoods != its.likelihoods for mine, its in zip(own, alone, strict=True))


def test_likelihoods_are_those_of_the_engine_for_each_method(engines, tmp_path):
    task = choices(documents=("Spain",), questions=1)
    asked = options(methods=("lc", "rag", "sd", "rapid"), eta=(10, "auto"), gamma=3)
    answers = made_run(tmp_path, [task], asked, engines)
    [question] = task.questions()
    wanted = {
        "lc": Speculation.off(),
        "rag": Speculation.retrieved_alone(),
        "sd": Speculation.off(),
    }
    for answer in answers:
        # An eta that sets itself is the one that the answer had.
        wanted["rapid"] = Speculation(eta=answer.eta or 0, gamma=3)
        found = engines["drafter"].log_likelihoods(
            question.messages, question.choices, context=question.context, speculation=wanted[answer.setting.method]
        )
        assert answer.likelihoods == found


def test_results_do_not_depend_on_the_order_of_documents_and_questions(engines, tmp_path):
    documents = [choices(max_new_tokens=4)]
    for name, tasks, asked in (
        ("documents", documents, EVERYTHING),
        ("others", [about_history(), reasoning()], options(gamma=3, temperature=1.0)),
    ):
        first = made_run(tmp_path / f"{name} 1", tasks, asked, engines)
        reversed_tasks = [MadeTask(task.name, task.questions()[::-1]) for task in reversed(tasks)]
        # Another engine, whose caches hold nothing yet.
        second = made_run(tmp_path / f"{name} 2", reversed_tasks, asked, made_engines())
        assert [answer.question for answer in first] != [answer.question for answer in second]
        assert by_setting(first) == by_setting(second)
        # Of documents that are cut, and of those that are lengthened by each other.
        assert {answer.setting.context_tokens for answer in first} == set(asked.context_tokens or [None])


def test_an_answer_is_drawn_with_a_seed_of_its_own_question_and_setting(engines, tmp_path):
    task = about_documents(documents=("Spain",), max_new_tokens=24)
    asked = options(methods=("lc", "rag"), temperature=1.0, seed=7)
    answers = made_run(tmp_path / "a", [task], asked, engines)
    for question in task.questions():
        setting = Setting(method="lc")
        alone = engines["drafter"].generate(
            question.messages,
            context=question.context,
            speculation=Speculation.off(),
            sampling=Sampling(temperature=1.0, max_new_tokens=24, seed=seed_of(7, question, setting)),
        )
        assert by_setting(answers)[question.id, "lc"].text == alone.text
    again = made_run(tmp_path / "b", [task], replace(asked, seed=8), engines)
    assert [answer.text for answer in again] != [answer.text for answer in answers]
    first, second = task.questions()
    seeds = {
        seed_of(seed, question, Setting(method=method))
        for seed in (7, 8)
        for question in (first, second)
        for method in ("lc", "sd")
    }
    assert len(seeds) == 8 and all(0 <= seed < 2**63 for seed in seeds)


def test_the_temperature_is_the_tasks_own_unless_given(engines, tmp_path):
    drawn = about_documents(documents=("Spain",), questions=1, temperature=5.0, max_new_tokens=24)
    greedy = about_documents(documents=("Spain",), questions=1, temperature=0.0, max_new_tokens=24)
    texts = {}
    for name, task, given in (("own", drawn, {}), ("zero", drawn, {"temperature": 0.0}), ("greedy", greedy, {})):
        [answer] = made_run(tmp_path / name, [task], options(methods="lc", **given), engines)
        texts[name] = answer.text
    assert texts["zero"] == texts["greedy"] != texts["own"]


def test_what_a_score_lacks_is_told_with_the_answer(engines, tmp_path):
    class Unjudged(MadeTask):
        def score(self, question, text, likelihoods):
            self.notes.append(f"An answer to {question.id!r} is not judged.")
            return {}

    task = Unjudged("facts", about_documents(documents=("Spain",)).questions())
    for answer in made_run(tmp_path, [task], options(methods=("lc",)), engines):
        assert answer.notes == (f"An answer to {answer.question!r} is not judged.",)


def test_what_a_method_is_is_no_note_of_its_answers(engines, tmp_path):
    asked = options(methods=("lc", "magicdec", "lookup"), gamma=3)
    answers = made_run(tmp_path, [about_documents(documents=("Spain",), questions=1)], asked, engines)
    assert len(answers) == 3 and all(answer.notes == () for answer in answers)


def test_a_second_call_asks_the_model_that_reasoned_without_the_document_and_its_text_counts(engines, tmp_path):
    task = reasoning()
    question = task.questions()[0]
    methods = ("lc", "rag", "sd", "rapid")
    asked = options(methods=methods, eta=1000.0, gamma=3)
    answers = made_run(tmp_path, [task], asked, engines)
    plain = by_setting(made_run(tmp_path / "plain", [about_documents("reasoning")], asked, engines))
    engine = engines["drafter"]
    for answer in answers[: len(methods)]:
        reasoned = plain[question.id, answer.setting.label]
        by_drafter = answer.setting.method == "rag"
        alone = engine.generate(
            f"You thought: {reasoned.text} Now the city alone.",
            sampling=Sampling(max_new_tokens=5),
            speculation=Speculation.retrieved_alone() if by_drafter else Speculation.off(),
        )
        assert (answer.reasoning, answer.text) == (reasoned.text, alone.text)
        assert answer.tokens == reasoned.tokens + alone.usage.completion_tokens
        assert answer.scores == task.score(question, alone.text, None)
        # What the engine says of the second call is what it says of any without a text.
        assert answer.notes == reasoned.notes


# ------------------------------------------------------------------------------------- measurements


def test_a_document_is_read_once_for_all_its_questions_and_settings(tmp_path):
    engines = made_engines()
    read = []
    for model in (engines["drafter"].target.model, engines["drafter"].drafter.model):
        model.register_forward_pre_hook(
            lambda model, _, given: read.append((model, given["input_ids"].shape[1])), with_kwargs=True
        )
    task = about_documents(documents=("Spain",), questions=4, paragraphs=60)
    made_run(tmp_path, [task], options(methods=("lc", "sd"), gamma=3), engines)
    document = engines["drafter"].count_tokens(text_of("Spain", 60))
    by_target = sum(tokens for model, tokens in read if model is engines["drafter"].target.model)
    # Four questions in two settings: without the caches it would be eight times the document.
    assert document < by_target < 2 * document


def test_a_second_call_does_not_cost_the_document_its_place_in_the_cache(tmp_path):
    # Room for the caches that are worked with, and for no other one.
    engine = RapidEngine(*tiny_pair(window=4096), retrieval=TINY, encoder=WordEncoder(), cache_gib=0, reproducible=True)
    read = []
    engine.target.model.register_forward_pre_hook(
        lambda _, __, given: read.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    task = reasoning(documents=("Spain",), paragraphs=60)
    asked = options(methods=("lc", "rag", "sd", "lookup", "rapid"), eta=(5, 10), gamma=3)
    made_run(tmp_path, [task], asked, {"drafter": engine})
    document = engine.count_tokens(text_of("Spain", 60))
    # Of six settings five have the document read by the target.
    assert document < sum(read) < 2 * document


def test_all_settings_that_read_a_prompt_have_its_seconds(engines, tmp_path):
    asked = options(methods=("lc", "rag", "sd", "lookup", "rapid"), eta=(5, 10), gamma=3)
    answers = made_run(tmp_path, [about_documents()], asked, engines)
    found = {}
    for measured in read_measurements(tmp_path):
        found.setdefault(measured.question, {})[measured.setting.label] = measured
    assert len(found) == 4 and all(len(own) == 6 for own in found.values())
    for own in found.values():
        reading = [measured.prefill_s for label, measured in own.items() if label != "rag"]
        assert len(set(reading)) == 1 and reading[0] > 0 and own["rag"].prefill_s == 0
        drafting = [own[label] for label in own if label.startswith(("rag", "sd", "rapid"))]
        assert len({measured.draft_prefill_s for measured in drafting}) == 1 and drafting[0].draft_prefill_s > 0
        assert len({measured.retrieval_s for measured in drafting}) == 1 and drafting[0].retrieval_s > 0
        for label in ("lc", "lookup, gamma 3"):
            assert own[label].draft_prefill_s == own[label].retrieval_s == 0
        assert own["lc"].drafted == own["rag"].drafted == 0 < own["sd, gamma 3"].drafted
    for answer in answers:
        measured = found[answer.question][answer.setting.label]
        assert measured.tokens == answer.tokens and measured.decode_s > 0
        assert 0 <= measured.accepted <= measured.drafted
        assert (answer.prompt_tokens == 0) == (answer.setting.method == "rag")
        assert (answer.drafter_prompt_tokens > 0) == (answer.setting.method in ("rag", "sd", "rapid"))
        assert answer.drafter_prompt_tokens < 300 and answer.prompt_tokens not in range(1, 300)


def test_seconds_of_reading_are_those_of_the_whole_prompt_whatever_was_read_before(tmp_path, monkeypatch):
    engines = made_engines()
    read = [0]
    for model in (engines["drafter"].target.model, engines["drafter"].drafter.model):
        model.register_forward_pre_hook(
            lambda _, __, given: read.__setitem__(0, read[0] + given["input_ids"].shape[1]), with_kwargs=True
        )
    # A second passes with each token that a model reads: times are then exact.
    monkeypatch.setattr(time, "perf_counter", lambda: float(read[0]))
    # The second task is about what the first one read, and each longer context begins as the one before.
    tasks = [about_documents(name, ("Spain", "Norway"), paragraphs=40) for name in ("first", "second")]
    asked = options(
        methods=("lc", "rag", "rapid"), eta=("auto", 3), gamma=3, retrieved_tokens=600, context_tokens=(900, 1800)
    )
    answers = made_run(tmp_path, tasks, asked, engines)
    found = {(each.question, each.setting): each for each in read_measurements(tmp_path)}
    assert len(answers) == 2 * 4 * 8
    for answer in answers:
        measured = found[answer.question, answer.setting]
        # The last id of a prompt is read with the first drafts.
        if answer.prompt_tokens:
            assert measured.prefill_s == answer.prompt_tokens - 1
        if answer.drafter_prompt_tokens and answer.setting.eta != "auto":
            assert measured.draft_prefill_s == answer.drafter_prompt_tokens - 1


def test_an_eta_that_sets_itself_is_kept_and_its_time_counts_as_reading(engines, tmp_path):
    asked = options(methods="rapid", eta=("auto", 3), gamma=3)
    answers = made_run(tmp_path, [about_documents()], asked, engines)
    for answer in answers:
        assert answer.eta == 3 if answer.setting.eta == 3 else 0 <= answer.eta <= 10
    measured = {(found.question, found.setting.eta): found.draft_prefill_s for found in read_measurements(tmp_path)}
    assert all(measured[answer.question, "auto"] > measured[answer.question, 3] for answer in answers)


def test_the_drafter_reads_passages_of_the_length_and_document_that_a_setting_names(engines, tmp_path, monkeypatch):
    engine, read = engines["drafter"], {}
    generate = type(engine).generate

    def watch(self, prompt, *, context, speculation, **given):
        result = generate(self, prompt, context=context, speculation=speculation, **given)
        read.setdefault((prompt[-1].content, speculation.eta), []).append((context, result.stats))
        return result

    monkeypatch.setattr(type(engine), "generate", watch)
    asked = options(methods="rapid", gamma=3, retrieved_tokens=(70, 200), unrelated=True)
    task = about_documents(documents=("Spain", "Norway", "Peru"), questions=1)
    made_run(tmp_path, [task], asked, engines)
    texts = {question.document: question.context.text for question in task.questions()}
    before = {"Norway": "Spain", "Peru": "Norway", "Spain": "Peru"}
    for question in task.questions():
        few, few_unrelated, many, many_unrelated = read[question.messages[-1].content, 10]
        for context, stats in (few, many):
            assert context.text == texts[question.document]
            assert all(chunk.text in texts[question.document] for chunk in stats.retrieved)
        for context, stats in (few_unrelated, many_unrelated):
            assert context.text == texts[question.document]
            assert all(
                chunk.text in texts[before[question.document]] and chunk.start == -1 for chunk in stats.retrieved
            )
        tokens = [sum(len(chunk.text) for chunk in stats.retrieved) for _, stats in (few, many)]
        assert 0 < tokens[0] <= 70 < tokens[1] <= 200


# ------------------------------------------------------------------------------------------- errors


def test_passages_of_another_document_are_read_however_little_they_have_to_do_with_the_question(tmp_path):
    # Nothing is so similar to the question: of its own document nobody reads a passage.
    retrieval = replace(TINY, threshold=1.0)
    engine = RapidEngine(*tiny_pair(window=4096), retrieval=retrieval, encoder=WordEncoder(), reproducible=True)
    asked = options(methods=("rag", "rapid"), gamma=3, retrieved_tokens=200, unrelated=True)
    for answer in made_run(tmp_path, [about_documents(questions=1)], asked, {"drafter": engine}):
        by_rapid, unrelated = answer.setting.method == "rapid", answer.setting.unrelated
        assert not by_rapid or (answer.drafter_prompt_tokens > 100) == unrelated
        assert any("no drafter" in note or "without passages" in note for note in answer.notes) != unrelated


def test_a_question_that_cannot_be_answered_is_kept_with_its_error_and_the_run_goes_on(tmp_path):
    engines = made_engines(window=640)
    long = about_documents("long", documents=("Norway",), questions=1)
    [question] = long.questions()
    long = MadeTask("long", [replace(question, context=LongContext(text_of("Norway", 40)))])
    answers = made_run(tmp_path, [long, about_documents()], options(methods=("lc", "rag")), engines)
    failed, by_drafter, *others = answers
    assert "640" in failed.error and (failed.text, failed.scores, failed.tokens) == ("", {}, 0)
    # The target's window is nothing to a method that reads passages only.
    assert not by_drafter.error and by_drafter.tokens > 0
    assert len(others) == 8 and not any(answer.error for answer in others)
    assert len(read_measurements(tmp_path)) == len(answers) - 1


def test_a_document_that_is_too_long_has_its_middle_cut_out_where_that_is_asked_for(tmp_path):
    engines = made_engines(window=640)
    [question] = about_documents("long", documents=("Norway",), questions=1).questions()
    long = MadeTask("long", [replace(question, context=LongContext(text_of("Norway", 40)))])
    answers = made_run(tmp_path, [long], options(methods=("lc", "sd"), gamma=3, fit="middle"), engines)
    assert not any(answer.error for answer in answers) and answers[0].text == answers[1].text
    assert any("middle" in note for note in answers[0].notes)


class _TrippedTask(MadeTask):
    """Its score fails where `trip` says so."""

    trip = staticmethod(lambda number: False)
    scored = 0

    def score(self, question, text, likelihoods):
        self.scored += 1
        if self.trip(self.scored):
            raise KeyError("not foreseen")
        return super().score(question, text, likelihoods)


def test_an_exception_that_nobody_foresaw_ends_the_run_with_all_answers_so_far_in_the_files(engines, tmp_path):
    task = _TrippedTask("facts", about_documents().questions())
    task.trip = lambda number: number == 6
    with pytest.raises(KeyError):
        made_run(tmp_path, [task], options(methods=("lc", "rag")), engines)
    assert len(read_answers(tmp_path)) == len(read_measurements(tmp_path)) == 5
