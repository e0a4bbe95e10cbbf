"""The client mod: one line for each reply, before it leaves, and nothing beside it."""

import importlib.util
import json
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from overhear.adapters.flower import record
from overhear.adapters.flower.record import RecordedReplies
from overhear.attacks.checks.result import Verdict
from overhear.commands.cli import main
from overhear.privacy import epsilon
from overhear.privacy.errors import InputError, InputTypeError
from overhear.privacy.guarantee import Statement, Unit
from overhear.privacy.releases.log import read_log
from overhear.runs.recorder.conformance import conformance
from overhear.training.accounts.declared import account_of_releases

from .messages import MODEL, Arrays, context, message, reply


def mod(folder, **how):
    given = {"unit": Unit.CLIENT, "clip": 1.0, "noise_std": 2.0, "allow": (), "agent": None,
             "agents": None, "keep": (), **how}  # fmt: skip
    return RecordedReplies(folder=folder, **given)


def lines(folder, agent=0):
    path = folder / f"agent-{agent}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_reply_has_its_line_before_it_leaves(tmp_path):
    given = reply(**MODEL)
    assert mod(tmp_path)(message(), context(), lambda *_: given) is given
    header, line = lines(tmp_path)
    assert (header["agents"], header["agent"], header["unit"]) == (2, 0, "client")
    assert line["round"] == 1
    assert line["releases"] == [{"from": 0, "to": "server", "kind": "model", "noise": 2.0}]


def test_logs_of_all_clients_are_one_account(tmp_path):
    """3 rounds of 2 clients, mu = sqrt(3) / 2 each, from single processes as from several."""
    for t in (1, 2, 3):
        for agent in range(2):
            again = pickle.loads(pickle.dumps(mod(tmp_path)))  # noqa: S301 our own bytes
            again(message(round=t), context(agent), lambda *_: reply(**MODEL))
    log = read_log(tmp_path)
    assert [played.round for played in log.rounds] == [1, 2, 3]
    found = account_of_releases(log, statement=Statement(delta=1e-5, unit=Unit.CLIENT))
    expected = epsilon(noise_multiplier=2.0, delta=1e-5, rounds=3, sampling_rate=1.0)
    assert found["server"].epsilon == pytest.approx(expected)
    assert str(found["server"].status) == "declared"


def test_a_run_that_begins_again_counts_again(tmp_path):
    for t in (1, 2, 1):
        mod(tmp_path)(message(round=t), context(0, 1), lambda *_: reply(**MODEL))
    played = read_log(tmp_path / "agent-0.jsonl").rounds
    assert [(one.round, one.again) for one in played] == [(1, 0), (1, 1), (2, 0)]


def test_a_message_without_a_round_has_the_next(tmp_path):
    for _ in range(2):
        asked = message()
        asked.content.config_records = {}
        mod(tmp_path)(asked, context(), lambda *_: reply(**MODEL))
    assert [one["round"] for one in lines(tmp_path) if "round" in one] == [1, 2]


@pytest.mark.parametrize(
    ("kind", "held", "words"),
    [
        ("evaluate", {"metrics": {"m": {"acc": 0.9}}}, r"'evaluate' holds m\.acc, which is sent w"),
        ("evaluate", MODEL, "holds arrays, which is sent without noise"),
        ("train", {**MODEL, "configs": {"c": {"seed": 1}}}, r"holds c\.seed"),
        ("train", {"arrays": {"a": {"w": np.ones(3)}, "b": {"w": np.ones(3)}}}, "holds b, which"),
        ("train", {}, "holds no ArrayRecord"),
        ("train", {"arrays": {"a": {"w": np.array([np.nan])}}}, "not finite"),
        ("train", {"arrays": {"a": {"w": np.ones(3, dtype=int)}}}, "array of int64"),
        ("train", {"arrays": {"a": {"w": np.ones(3), "mean": np.ones(3)}}}, "the array 'mean'"),
        ("query", {"configs": {"info": {"records": 812}}}, r"'query' holds info\.records"),
        (
            "train",
            {**MODEL, "metrics": {"metrics": {"num-examples": 100, "train_loss": 0.3}}},
            r"holds metrics\.num-examples, metrics\.train_loss, which are sent without noise.*"
            r"leave metrics\.train_loss out of the reply.*let every client send "
            r"metrics\.num-examples as 1, which tells nothing, and say "
            r"record\(\.\.\., allow=\['metrics\.num-examples'\]\)",
        ),
    ],
)
def test_what_no_line_declares_does_not_leave(tmp_path, caplog, kind, held, words):
    with pytest.raises(RuntimeError) as caught:
        mod(tmp_path)(message(kind), context(), lambda *_: reply(**held))
    assert re.search(words, caplog.text)
    # The server reads it: a metric's name may be that of a label which only this client has.
    assert str(caught.value) == "the client sends no reply; why stands in the client's log"
    assert caught.value.__suppress_context__
    assert not list(tmp_path.glob("*.jsonl"))


def test_why_replies_did_not_leave_is_told_once_and_the_account_says_it(tmp_path, caplog, capsys):
    held = {**MODEL, "metrics": {"metrics": {"train_loss": 0.3}}}
    for t, agent in ((1, 0), (1, 1), (2, 0), (3, 0)):
        with pytest.raises(RuntimeError, match="sends no reply"):
            mod(tmp_path)(message(round=t), context(agent), lambda *_: reply(**held))
    assert caplog.text.count("holds metrics.train_loss") == 2  # once for each client
    assert main(["account", str(tmp_path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "holds no *.jsonl" in said
    assert "replies of agent-0, agent-1 did not leave: the reply to 'train' holds" in said
    mod(tmp_path)(message(round=4), context(0), lambda *_: reply(**MODEL))
    assert main(["account", str(tmp_path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "no log of agent 1 of 2 is given" in said
    assert "did not leave: the reply to 'train' holds metrics.train_loss" in said
    mod(tmp_path)(message(round=4), context(1), lambda *_: reply(**MODEL))
    assert main(["account", str(tmp_path)]) == 0
    assert "replies of agent-0, agent-1 did not leave" in " ".join(capsys.readouterr().out.split())


def test_what_is_allowed_leaves_and_the_log_names_it(tmp_path, caplog):
    held = {**MODEL, "metrics": {"metrics": {"num-examples": 1}, "kind": {"cpu": 1, "gpu": 0}}}
    allowed = mod(tmp_path, allow=("kind", "metrics.num-examples"))
    allowed(message(), context(), lambda *_: reply(**held))
    assert lines(tmp_path)[0]["system"] == "flower; without noise: kind, metrics.num-examples"
    held["metrics"]["metrics"]["loss"] = 0.5
    with pytest.raises(RuntimeError, match="sends no reply"):
        allowed(message(round=2), context(), lambda *_: reply(**held))
    assert "holds metrics.loss" in caplog.text
    assert len(lines(tmp_path)) == 2


def test_an_evaluation_that_says_nothing_has_no_line(tmp_path):
    mod(tmp_path)(message("evaluate"), context(), lambda *_: reply())
    assert not list(tmp_path.glob("*.jsonl"))


def test_why_an_app_failed_stays_with_the_client(tmp_path, caplog):
    def failing(msg, ctxt):
        raise ValueError("record 17 has the age 212")

    with pytest.raises(RuntimeError) as caught:
        mod(tmp_path)(message(), context(), failing)
    assert "age" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert "record 17 has the age 212" in caplog.text

    refused = SimpleNamespace(has_error=lambda: True, error=SimpleNamespace(reason="age 212"))
    with pytest.raises(RuntimeError) as caught:
        mod(tmp_path)(message(), context(), lambda *_: refused)
    assert "age" not in str(caught.value)
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_client_without_a_number_is_refused_before_it_trains(tmp_path):
    never = pytest.fail
    nobody = SimpleNamespace(node_config={})
    with pytest.raises(InputError, match="agent is not known: start the node with --node-config"):
        mod(tmp_path)(message(), nobody, never)
    with pytest.raises(InputError, match="agents is not known"):
        mod(tmp_path, agent=3)(message(), nobody, never)
    with pytest.raises(InputError, match=r"agent=5 must be an integer in 0\.\.1"):
        mod(tmp_path)(message(), context(5, 2), never)
    mod(tmp_path, agent=3, agents=9)(message(), nobody, lambda *_: reply(**MODEL))
    assert lines(tmp_path, 3)[0]["agents"] == 9


def test_other_settings_than_the_log_began_with_are_refused(tmp_path, caplog):
    mod(tmp_path)(message(), context(), lambda *_: reply(**MODEL))
    with pytest.raises(RuntimeError, match="sends no reply"):
        mod(tmp_path, clip=0.5)(message(round=2), context(), lambda *_: reply(**MODEL))
    assert "says clip=1.0" in caplog.text


def test_a_model_beside_which_late_noise_is_lost_is_not_sent_and_noise_that_came_first_is(
    tmp_path, caplog
):
    large = {"w": np.full(400, 2e4, dtype=np.float32)}
    given = asked(large, model=large["w"])
    sent = {"w": large["w"] + np.random.default_rng(0).normal(0, 2.0, 400)}
    with pytest.raises(RuntimeError, match="sends no reply"):
        mod(tmp_path)(given, context(), lambda *_: changed(sent, dtype=np.float32))
    assert "say noise_first=True, which is then assumed" in caplog.text
    mod(tmp_path, noise_first=True)(given, context(), lambda *_: changed(sent, dtype=np.float32))
    assert lines(tmp_path)[-1]["releases"][0]["noise_first"] is True
    with pytest.raises(InputTypeError, match="noise_first=1 must be True or False"):
        mod(tmp_path, noise_first=1)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"clip": 0.0}, "clip=0 must be above 0"),
        ({"noise_std": -1.0}, "noise_std=-1 must be at least 0"),
        ({"noise_std": float("inf")}, "must be a finite number"),
        ({"agents": 0}, "agents=0 must be an integer"),
        ({"agent": 4, "agents": 3}, r"agent=4 must be an integer in 0\.\.2"),
        ({"keep": "all", "unit": Unit.RECORD}, "keep cannot be used with unit='record'"),
    ],
)
def test_settings_that_no_line_could_hold_are_refused(tmp_path, how, words):
    with pytest.raises(InputError, match=words):
        mod(tmp_path, **how)


def test_without_flwr_the_extra_is_named(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "flwr" else found(name)
    )
    with pytest.raises(
        ImportError, match=r'pip install "flwr>=1.41,<2"|pip install "flwr<2,>=1.41"'
    ):
        record(tmp_path, unit="client", clip=1.0, noise_std=2.0)


def test_allow_is_a_list_of_names(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(InputTypeError, match="must be a list of names"):
        record(tmp_path, unit="client", clip=1.0, noise_std=2.0, allow="metrics")
    given = record(tmp_path, unit="record", clip=1.0, noise_std=2.0, allow=["b", "a", "b"])
    assert (given.allow, given.unit) == (("a", "b"), Unit.RECORD)


def changed(by, *, dtype=np.float32):
    """A reply of two arrays that the message has as zeros, changed by these."""
    arrays = {name: np.asarray(of, dtype=dtype) for name, of in by.items()}
    return reply(arrays={"arrays": arrays})


def asked(by, round=1, model=None):
    """A message with arrays like these, of zeros, or with this model."""
    given, zeros = message(round=round), {k: np.zeros_like(v) for k, v in by.items()}
    given.content.array_records["arrays"] = Arrays(zeros if model is None else {"w": model})
    return given


def noisy(chance, sizes, *, std=2.0, update=0.05):
    return {name: chance.normal(update, std, n) for name, n in sizes.items()}


SIZES = {"w": 400, "b": 10}


@pytest.mark.parametrize(
    ("fault", "how", "words"),
    [
        (lambda by: {**by, "w": np.full(400, 0.01)}, {}, "the array 'w' of the reply is closer"),
        (lambda by: {**by, "b": np.zeros(10)}, {}, "the array 'b' of the reply is closer"),
        (lambda by: {k: v / 2 for k, v in by.items()}, {}, "is closer to that of the message"),
        (lambda by: {k: 2 * v for k, v in by.items()}, {}, "further from the message than clip=1"),
        (lambda by: {**by, "b": by["b"] + 100}, {}, "further from the message than clip=1"),
        (lambda by: {k: np.full(v.shape, 0.1) for k, v in by.items()}, {"noise_std": 0.0}, "furth"),
    ],
)
def test_noise_that_is_not_there_and_updates_that_nobody_clipped_do_not_leave(
    tmp_path, caplog, fault, how, words
):
    """False alarms: 1e-12 an array."""
    by = fault(noisy(np.random.default_rng(0), SIZES))
    with pytest.raises(RuntimeError, match="sends no reply"):
        mod(tmp_path, **how)(asked(by), context(), lambda *_: changed(by))
    assert words in caplog.text
    assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize(
    ("n", "std", "found"), [(640, 1.4, 1), (640, 1.8, 0), (10, 0.04, 1), (10, 0.4, 0)]
)
def test_how_much_noise_must_be_missing_is_as_the_documentation_says(
    tmp_path, caplog, n, std, found
):
    """The first two of 2: found but once in 1e6, not found but once in 1e6."""
    chance = np.random.default_rng(4)
    by = noisy(chance, {"w": n}, std=std, update=0.0)
    try:
        mod(tmp_path)(asked(by), context(), lambda *_: changed(by))
    except RuntimeError:
        assert "closer" in caplog.text
    assert bool(list(tmp_path.glob("*.jsonl"))) is not bool(found)


def test_an_array_of_another_shape_is_no_update(tmp_path, caplog):
    by = {"w": np.ones(3)}
    with pytest.raises(RuntimeError, match="sends no reply"):
        mod(tmp_path)(asked(by), context(), lambda *_: changed({"w": np.ones(4)}))
    assert "'w' has the shape (4,), and that of the message has (3,)" in caplog.text


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("std", [0.05, 2.0])
def test_what_is_as_declared_leaves(tmp_path, dtype, std):
    """At the bound, in either precision, as a model or as an update alone."""
    chance, before = np.random.default_rng(1), np.random.default_rng(2).normal(0, 20, 400)
    for t in range(1, 21):
        z = chance.normal(0, std, 400) + 1 / 20
        given = asked({}, round=t, model=before.astype(dtype))
        sent = {"w": before + z} if t % 2 else {"w": z}
        mod(tmp_path, noise_std=std, noise_first=True)(
            given, context(), lambda *_, sent=sent: changed(sent, dtype=dtype)
        )
    assert len([one for one in lines(tmp_path) if "round" in one]) == 20


def test_a_server_that_asks_for_a_longer_update_is_refused_before_the_client_trains(tmp_path):
    """Flower's clipping mods clip to what the server says."""
    given = message()
    given.content.config_records["config"]["clipping_norm"] = 5.0
    with pytest.raises(InputError, match=r"config\.clipping_norm=5\.0, to which Flower's mods"):
        mod(tmp_path)(given, context(), pytest.fail)
    mod(tmp_path, clip=5.0)(given, context(), lambda *_: reply(**MODEL))
    mod(tmp_path / "of-records", unit=Unit.RECORD)(given, context(), lambda *_: reply(**MODEL))


@pytest.mark.filterwarnings("ignore:transcripts of all rounds")
@pytest.mark.parametrize("fault", ["", "less noise"])
def test_rounds_that_are_kept_are_held_against_what_clients_do(tmp_path, fault):
    """Two clients, 8 rounds; one adds .7 of its noise, which no single reply shows."""
    n, start = 48, np.zeros(48)

    def update(point, positions, agent):
        return torch.as_tensor(2.0 * (np.cos(np.arange(n) + agent) - np.asarray(point)))[None]

    def play(agent, model, chance):
        step = update(model, None, agent)[0].numpy()
        std = 0.35 if fault and agent else 0.5
        clipped = step * min(1, 1 / np.linalg.norm(step))
        return changed({"w": model + clipped + chance.normal(0, std, n)}, dtype=float)

    model, chance = start, np.random.default_rng(3)
    for t in range(1, 9):
        given = asked({}, round=t, model=model)
        sent = [
            mod(tmp_path, keep="all", noise_std=0.5, rounds=8)(
                given,
                context(agent),
                lambda _, c, model=model: play(c.node_config["partition-id"], model, chance),
            )
            for agent in range(2)
        ]
        model = np.mean([one.content.array_records["arrays"]["w"] for one in sent], axis=0)

    def averaged(round, agent, released):
        return np.mean([one.value for one in released if one.round == round - 1] or [start], axis=0)

    found = conformance(tmp_path, gradients=update, points=averaged, public=[start])
    if fault:
        assert found["residuals"].verdict is Verdict.FAILED
    else:
        assert found.said == "declared; checked in rounds 1 to 8"
        assert found["points"].verdict is Verdict.PASSED
