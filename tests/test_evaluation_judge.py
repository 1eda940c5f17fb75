"""A judge behind an address: what it is asked, how its replies are read, and what happens when it fails."""

import socket
import time

import pytest
from judge_server import Server, fails, says

from rapid_core import Message, OptionError
from rapid_core.evaluation.judge import KEY_VARIABLE, Judge, JudgeError, NoScoreError
from rapid_core.evaluation.options import EvalOptions

CONVERSATION = (Message("user", "Who mends the roof?"), Message("assistant", "The landlord."), Message("user", "When?"))
KEY = "sk-very-secret"


def judge(server, **options):
    return Judge(**{"url": server.url, "model": "a-judge", "wait_s": 0.01, "timeout_s": 5.0, **options})


def test_the_judge_is_asked_with_the_conversation_the_reference_and_the_answer():
    with Server(says("It says when.\nScore: 7")) as server:
        assert judge(server, url=f"{server.url}/").score(CONVERSATION, "Within a week.", "In a week.") == 7.0
    assert server.paths == ["/v1/chat/completions"]
    [asked] = server.asked
    assert asked["model"] == "a-judge" and asked["temperature"] == 0
    assert [message["role"] for message in asked["messages"]] == ["system", "user"]
    content = asked["messages"][1]["content"]
    order = ("User: Who mends the roof?", "Assistant: The landlord.", "User: When?", "Within a week.", "In a week.")
    assert [content.index(part) for part in order] == sorted(content.index(part) for part in order)
    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Score: 1", 1.0),
        ("Good.\n**Score: 10**", 10.0),
        ("Score: **8**", 8.0),
        ("score = 6.5", 6.5),
        ("Rating: [[9]]", 9.0),
        ("The score is 4.", 4.0),
        ("Score: 7/10", 7.0),
        ("I give it 7/10.", 7.0),
        ("It gets 3 out of 10", 3.0),
        ("Score: 9 at first sight, but it names the wrong day.\nScore: 2", 2.0),
        (" 5\n", 5.0),
        ("[[5]]", 5.0),
    ],
)
def test_a_score_is_read_in_every_usual_form(reply, score):
    with Server(says(reply)) as server:
        assert judge(server).score(CONVERSATION, "a", "b") == score


@pytest.mark.parametrize("reply", ["", "It is fine.", "In 1942 there were 3 of them.", "Score: none", "Score: -3"])
def test_a_reply_without_a_score_is_no_score(reply):
    with (
        Server(says(reply)) as server,
        pytest.raises(NoScoreError, match=r"must hold 'Score: N', a-judge wrote .*; judge with a model"),
    ):
        judge(server).score(CONVERSATION, "a", "b")
    assert len(server.asked) == 1


@pytest.mark.parametrize("reply", ["Score: 0", "Score: 11", "Score: 85", "Score: 0.5"])
def test_a_score_off_the_scale_is_no_score(reply):
    with Server(says(reply)) as server, pytest.raises(NoScoreError, match=r"from 1 to 10, a-judge gave [0-9.]+;"):
        judge(server).score(CONVERSATION, "a", "b")


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_busy_or_broken_server_is_asked_again(status):
    with Server(fails(status), fails(status), says("Score: 5")) as server:
        assert judge(server).score(CONVERSATION, "a", "b") == 5.0
    assert len(server.asked) == 3
    assert server.asked[0] == server.asked[2]


def test_each_wait_is_twice_the_one_before():
    with Server(fails(503)) as server, pytest.raises(NoScoreError):
        judge(server, wait_s=0.05, tries=4).score(CONVERSATION, "a", "b")
    waits = [later - earlier for earlier, later in zip(server.times, server.times[1:], strict=False)]
    assert len(waits) == 3
    assert all(wait >= least for wait, least in zip(waits, (0.05, 0.1, 0.2), strict=True))


def test_a_server_that_says_how_long_it_is_busy_is_left_alone_for_so_long():
    with Server(fails(429, **{"Retry-After": "1"}), says("Score: 5")) as server:
        judge(server).score(CONVERSATION, "a", "b")
    assert server.times[1] - server.times[0] >= 1.0


def test_a_server_that_stays_busy_gives_no_score_and_says_why():
    with (
        Server(fails(503, "overloaded")) as server,
        pytest.raises(NoScoreError, match=r"said 503 overloaded to 3 tries; ask again later"),
    ):
        judge(server, tries=3).score(CONVERSATION, "a", "b")
    assert len(server.asked) == 3


def test_a_reply_that_takes_too_long_is_asked_for_again():
    def slow(_):
        time.sleep(2.0)
        return says("Score: 1")

    with Server(slow, says("Score: 6")) as server:
        assert judge(server, timeout_s=0.5).score(CONVERSATION, "a", "b") == 6.0
    with Server(slow) as server, pytest.raises(NoScoreError, match=r"within 0.2 s, http.* did not, asked 2 times;"):
        judge(server, timeout_s=0.2, tries=2).score(CONVERSATION, "a", "b")


@pytest.mark.parametrize("status", [301, 400, 401, 404])
def test_a_refusal_is_not_repeated_and_names_what_to_correct(status):
    with (
        Server(fails(status, "no such model")) as server,
        pytest.raises(
            JudgeError, match=rf"refused model 'a-judge' with {status} no such model; correct .*{KEY_VARIABLE}"
        ) as raised,
    ):
        judge(server).score(CONVERSATION, "a", "b")
    assert not isinstance(raised.value, NoScoreError)
    assert len(server.asked) == 1


def test_an_address_where_nobody_answers_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(JudgeError, match=rf"{url} does not .*; start the server, or correct the address") as raised:
            Judge(url=url, model="a-judge", tries=2, wait_s=0.01).score(CONVERSATION, "a", "b")
    assert not isinstance(raised.value, NoScoreError)


@pytest.mark.parametrize("body", ["<html>", "[]", '{"choices": []}', '{"choices": [{"message": {"content": null}}]}'])
def test_a_reply_that_is_no_chat_completion_is_named(body):
    with Server((200, body, {})) as server, pytest.raises(JudgeError, match=r"must lead to chat completions.*/v1"):
        judge(server).score(CONVERSATION, "a", "b")


def test_the_key_comes_from_the_environment_and_is_sent(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with Server(says("Score: 5")) as server:
        Judge.from_environment(server.url, "a-judge").score(CONVERSATION, "a", "b")
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("reply", [fails(401, f"the key {KEY} is wrong"), fails(500, KEY), says(f"{KEY}, no score")])
def test_the_key_is_never_shown(reply, caplog):
    caplog.set_level("DEBUG")
    with Server(reply) as server, pytest.raises(JudgeError) as raised:
        judge(server, api_key=KEY, tries=2).score(CONVERSATION, "a", "b")
    assert KEY not in str(raised.value) and "***" in str(raised.value)
    assert KEY not in repr(judge(server, api_key=KEY))
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"url": "localhost:8000/v1"}, "must be an http or https address .* got 'localhost:8000/v1'"),
        ({"url": "ftp://judge/v1"}, "must be an http or https address"),
        ({"url": "http://"}, "must be an http or https address"),
        ({"url": "http://me:secret@judge/v1"}, "must hold no name and no password"),
        ({"model": " "}, "must name the model"),
        ({"tries": 0}, "tries must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_a_judge_is_refused_before_anything_is_asked(options, rule):
    with pytest.raises(OptionError, match=rule) as raised:
        Judge(**{"url": "http://localhost:8000/v1", "model": "a-judge", **options})
    assert "secret" not in str(raised.value)


def test_an_evaluation_takes_a_judge_whose_key_is_no_option(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    options = EvalOptions(judge_url="http://localhost:8000/v1", judge_model="a-judge")
    assert options.judge == Judge(url="http://localhost:8000/v1", model="a-judge", api_key=KEY)
    assert KEY not in str(options.as_object())
    assert EvalOptions().judge is None


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"judge_url": "http://localhost/v1"}, "needs an address and the name of a model, got .* judge_model=None"),
        ({"judge_model": "a-judge"}, "needs an address and the name of a model, got judge_url=None"),
        ({"judge_url": "localhost", "judge_model": "a-judge"}, "judge_url must be an http or https address"),
    ],
)
def test_a_judge_is_checked_with_the_options_of_an_evaluation(options, rule):
    with pytest.raises(OptionError, match=rule):
        EvalOptions(**options)
