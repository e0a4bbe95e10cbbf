"""A ClientApp of Flower's own, its mods and its messages, without a network."""

import json

import numpy as np
import pytest

from overhear.adapters.flower import record
from overhear.privacy.guarantee import Statement, Unit
from overhear.privacy.releases.log import read_log
from overhear.training.accounts.declared import account_of_releases

NEEDED = "needs flwr[simulation]: make test-flower"
pytest.importorskip("flwr", reason=NEEDED, exc_type=ImportError)

from flwr.app import (  # noqa: E402 after the skip
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

SIZE, CLIP, STD = 200, 1.0, 2.0
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = (
    1  # as a running server has them
)
UNSAID = "the client sends no reply; why stands in the client's log"


def noise(msg, ctxt, call_next):
    reply = call_next(msg, ctxt)
    for name, arrays in list(reply.content.array_records.items()):
        reply.content[name] = ArrayRecord(
            {key: Array(of.numpy() + np.random.default_rng().normal(0, STD, SIZE).astype("f4"))
             for key, of in arrays.items()}
        )  # fmt: skip
    return reply


def app(folder, answer, *, mods=(noise, fixedclipping_mod), **how):
    given = {"unit": "client", "clip": CLIP, "noise_std": STD, **how}
    made = ClientApp(mods=[record(folder, **given), *mods])
    made.train()(lambda msg, ctxt: Message(RecordDict(answer(msg)), reply_to=msg))
    return made


def ask(made, *, round=1, agent=0, clip=CLIP):
    config = ConfigRecord({"server-round": round, "clipping_norm": clip})
    model = ArrayRecord({"w": Array(np.zeros(SIZE, dtype="f4"))})
    msg = Message(
        RecordDict({"arrays": model, "config": config}), dst_node_id=7, message_type="train"
    )
    node = {"partition-id": agent, "num-partitions": 2}
    ctxt = Context(run_id=1, node_id=7, node_config=node, state=RecordDict(), run_config={})
    return made(msg, ctxt)


def model(_=None, *, of=None):
    return {"arrays": ArrayRecord({"w": Array(np.ones(SIZE, dtype="f4") if of is None else of)})}


def refused(made, caplog):
    """What the client's log says of a reply that is not sent."""
    answer = ask(made)  # Flower would tell an exception with its traceback, each time
    assert answer.has_error()
    assert not answer.has_content()
    assert answer.error.reason == UNSAID
    return caplog.text


def rounds(folder, agent=0):
    text = (folder / f"agent-{agent}.jsonl").read_text()
    return [one["round"] for one in map(json.loads, text.splitlines()) if "round" in one]


def test_a_reply_clipped_by_flower_leaves_with_its_line(tmp_path):
    sent = ask(app(tmp_path, model)).content["arrays"]["w"].numpy()
    assert np.linalg.norm(sent) == pytest.approx(STD * SIZE**0.5, rel=0.3)
    assert rounds(tmp_path) == [1]


def test_flowers_local_noise_is_as_its_formula_declares_it(tmp_path):
    std = (2 * np.log(1.25 / 1e-5)) ** 0.5 / 4
    ask(app(tmp_path, model, mods=[LocalDpMod(CLIP, 1.0, 4.0, 1e-5)], noise_std=float(std)))
    assert rounds(tmp_path) == [1]


@pytest.mark.parametrize(
    ("answer", "how", "words"),
    [
        (model, {"mods": [fixedclipping_mod]}, "the array 'w' of the reply is closer"),
        (model, {"mods": [fixedclipping_mod, noise]}, "is closer to that of the message"),
        (lambda _: model(of=np.full(SIZE, 9, "f4")), {"mods": [noise]}, "further from the message"),
        (
            lambda _: {**model(), "metrics": MetricRecord({"num-examples": 1, "loss": 0.3})},
            {"allow": ["metrics.num-examples"]},
            "holds metrics.loss, which is sent without noise",
        ),
        (
            lambda _: {**model(), "metrics": MetricRecord({"num-examples": 1})},
            {"mods": [noise, adaptiveclipping_mod], "allow": ["metrics.num-examples"]},
            "holds metrics.norm_bit",
        ),
        (
            lambda _: {"arrays": ArrayRecord({"w": Array("f4", (SIZE,), "pickle", b"age 212")})},
            {"mods": []},
            "arrays holds an array that is none of numpy's",
        ),
        (lambda _: {"c": ConfigRecord({"w": [0.5]})}, {"mods": []}, "holds c.w, which is sent"),
        (lambda _: model(of=np.ones(SIZE, "i8")), {"mods": []}, "array of int64"),
        (lambda _: model(of=np.array([object()])), {"mods": []}, "the client app failed"),
    ],
)
def test_a_reply_that_is_not_as_declared_does_not_leave(tmp_path, caplog, answer, how, words):
    said = refused(app(tmp_path, answer, **how), caplog)
    assert words in said
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_server_that_asks_for_longer_updates_gets_none(tmp_path):
    made = app(tmp_path, lambda _: pytest.fail("it trained"))
    with pytest.raises(ValueError, match=r"config\.clipping_norm=3\.0, to which Flower's mods"):
        ask(made, clip=3.0)


def test_a_client_that_sends_twice_in_a_round_counts_twice(tmp_path):
    made = app(tmp_path, model)
    for agent in (0, 0, 1):
        ask(made, agent=agent)
    assert rounds(tmp_path) == [1, 1]
    once = app(tmp_path / "once", model)
    for agent in (0, 1):
        ask(once, agent=agent)
    assert epsilon_of(tmp_path) > 1.3 * epsilon_of(tmp_path / "once")


def test_a_client_that_drops_out_is_named_before_it_counts_less(tmp_path):
    made = app(tmp_path, model)
    for t, agent in ((1, 0), (1, 1), (2, 0)):
        ask(made, round=t, agent=agent)
    with pytest.raises(ValueError, match="agent-1"):
        epsilon_of(tmp_path)
    assert epsilon_of(tmp_path, absent={1: [2]}) > 0


def epsilon_of(folder, **how):
    log = read_log(folder, **how)
    return account_of_releases(log, statement=Statement(delta=1e-5, unit=Unit.CLIENT))[
        "server"
    ].epsilon
