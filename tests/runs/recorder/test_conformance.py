"""Conformance: sound records pass, too little is not passed, and what was kept is not chosen."""

import numpy as np
import pytest
import torch
from torch import nn

from overhear.attacks.checks.result import Verdict
from overhear.privacy.errors import InputError
from overhear.privacy.guarantee import Statement, Status
from overhear.privacy.releases.lines import read_header, read_release
from overhear.privacy.releases.values import read_clip
from overhear.runs.recorder import recorder
from overhear.runs.recorder.keeping import clipped_rows, per_example
from overhear.runs.recorder.record import record

from .gossip import AGENTS, RECORDS, START, STD, D, checked, clipped, gradients, play

pytestmark = pytest.mark.filterwarnings("ignore:transcripts of")
PASSED, FAILED, NOT_RUN = Verdict.PASSED, Verdict.FAILED, Verdict.NOT_RUN


def verdicts(found):
    return {one.name: one.verdict for one in found.outcomes}


def test_a_sound_system_is_checked_in_the_rounds_that_were_kept(tmp_path):
    found = checked(play(tmp_path, own_noise=False, own_batches=False))
    assert verdicts(found) == {
        "messages": PASSED, "residuals": PASSED, "sums": PASSED, "rows": PASSED,
        "sampler": PASSED, "points": PASSED, "numbers": PASSED, "knowledge": NOT_RUN,
    }  # fmt: skip
    assert found.passed
    assert found.said == "declared; checked in rounds 1 to 8"
    assert found.false_alarm == pytest.approx(3e-6)
    account = found.account(Statement(delta=1e-5))
    assert {g.status for g in account.guarantees.values()} == {Status.CHECKED}
    assert any(sentence.startswith("A1") for sentence in found.assumed)
    assert "checked in rounds 1 to 8" in str(found)


def test_a_few_rounds_are_too_few_for_some_checks_and_the_status_stays_declared(tmp_path):
    found = checked(play(tmp_path, own_noise=False, keep=[1, 2]))
    assert found.passed
    assert found["messages"].verdict is PASSED
    assert found["sampler"].verdict is NOT_RUN
    assert "too few to tell a shuffled epoch" in found["sampler"].words
    assert found.status is Status.DECLARED
    assert found.said == "declared; checked in rounds 1, 2 but for sampler"
    assert any("6 rounds beside rounds 1, 2" in sentence for sentence in found.assumed)


@pytest.mark.parametrize("fault", ["", "mixed"])
def test_rows_are_compared_with_their_records_where_the_noise_is_the_systems_own(tmp_path, fault):
    """Without rows nobody compared them; with rows a mixed batch is found."""
    chance = np.random.default_rng(0)
    given = {"agents": 1, "clip": 1.0, "rate": 0.2, "sampler": "poisson", "keep": "all"}
    given |= {"rounds": 30, "noise": STD}
    for name in ("with", "without"):
        with record(tmp_path / f"{name}.jsonl", agent=0, **given) as ledger:
            for t in range(1, 31):
                batch = chance.permutation(np.flatnonzero(chance.random(RECORDS) < 0.2))
                each = gradients(START, batch, 0)
                if fault:
                    each = 0.9 * each + 0.1 * each.roll(1, 0)
                ledger.release(
                    t, kind="g", to="all", noise=STD, batch=batch, point=START, records=RECORDS,
                    value=clipped(each) + torch.from_numpy(chance.normal(0, STD, D)),
                    rows=each if name == "with" else None,
                )  # fmt: skip
        found = checked(ledger.path, points=None)
        if name == "without":
            assert found.status is Status.DECLARED
            assert "was not kept, so that no one compared it" in found["rows"].words
        else:
            assert found["rows"].verdict is (FAILED if fault else PASSED)
            assert (found.status is Status.CHECKED) is not bool(fault)


def test_an_oracle_that_mixes_records_speaks_for_no_row(tmp_path):
    def mixing(point, positions, agent):
        each = gradients(point, positions, agent)
        return 0.9 * each + 0.1 * each.roll(1, 0)

    play(tmp_path, own_noise=False, rounds=2)
    found = checked(tmp_path, gradients=mixing)["rows"]
    assert (found.verdict, "let it take each record by itself" in found.words) == (FAILED, True)


@pytest.mark.parametrize(
    ("rows", "message"),
    [(np.zeros((3, D)), "rows has 3 gradients, and the batch 2 records"), (["x"], "rows must be")],
)
def test_rows_that_are_none_of_the_batch_are_refused(tmp_path, rows, message):
    with record(tmp_path / "a.jsonl", agent=0, agents=1, clip=1.0, keep="all") as ledger:
        given = {"value": START, "batch": [4, 2], "point": START, "rows": rows}
        with pytest.raises(InputError, match=message):
            ledger.release(1, kind="g", to="all", noise=1.0, **given)


def test_the_auditor_draws_rounds_afterwards(tmp_path):
    play(tmp_path, own_noise=False)
    found = checked(tmp_path, rounds=3, seed=1)
    assert len(found.rounds) == 3
    assert found.rounds == checked(tmp_path, rounds=3, seed=1).rounds
    assert checked(tmp_path, rounds=[2, 5]).rounds == [2, 5]
    for rounds, message in ((9, r"in \[1, 8\]"), ([9], "round 9 was not kept"), ("all", "must be")):
        with pytest.raises(InputError, match=message):
            checked(tmp_path, rounds=rounds)


def test_noise_too_scarce_or_gradients_too_short_are_not_passed(tmp_path):
    few = checked(play(tmp_path / "few", keep=[1]))
    assert few["residuals"].verdict is PASSED
    with record(tmp_path / "one.jsonl", agent=0, agents=2, clip=1.0, keep="all") as ledger:
        value = torch.tensor([0.3, -1.0])
        ledger.release(1, kind="g", to=1, noise=1.0, value=value, batch=[0], point=torch.zeros(2))
    given = {"gradients": lambda p, at: np.zeros((len(at), 2)), "public": [torch.zeros(2)]}
    found = checked(ledger.path, **given)
    assert "2 values are too few to see" in found["residuals"].words
    assert "none of 1 gradients is longer than the clip norm" in found["sums"].words
    assert found.said.endswith("round 1 but for residuals, sums, rows, numbers, every log")
    assert found.status is Status.DECLARED
    assert not checked(ledger.path, **{**given, "public": []}).passed  # nothing ran


def test_points_are_not_run_where_the_round_before_was_not_kept(tmp_path):
    play(tmp_path, own_noise=False, keep=[1, 5])
    found = checked(tmp_path)
    assert found["points"].verdict is NOT_RUN
    assert "the points of rounds 5 are unknown" in found["points"].words
    play(tmp_path / "next", own_noise=False, keep=[1, 4, 5])
    assert checked(tmp_path / "next", rounds=[5])["points"].verdict is PASSED
    assert checked(tmp_path / "next", rounds=[1], public=[])["points"].verdict is NOT_RUN


def test_where_releases_depend_on_public_ones_points_must_be_checked(tmp_path):
    play(tmp_path, own_noise=False, depends_on="public")
    found = checked(tmp_path)
    assert found["points"].verdict is FAILED  # the models went to one peer each, not to all
    assert found.status is Status.DECLARED
    assert "contradicted by points" in found.said


def test_a_transcript_that_is_missing_or_changed_is_refused(tmp_path):
    play(tmp_path, own_noise=False)
    (file,) = (tmp_path / "0.kept").glob("round-3-*")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"is not what 0\.jsonl names in round 3"):
        checked(tmp_path)
    assert checked(tmp_path, rounds=[1, 2]).passed
    file.unlink()
    with pytest.raises(FileNotFoundError, match="chooses what is checked"):
        checked(tmp_path)


def test_a_transcript_that_holds_a_record_twice_is_refused(tmp_path, monkeypatch):
    """As a system might keep it that does not mean well: its line names the digest all the same."""
    monkeypatch.setattr(recorder, "positions_of", np.asarray)
    with record(tmp_path / "0.jsonl", agent=0, agents=1, clip=1.0, keep="all") as ledger:
        given = {"value": START, "batch": [3, 3], "point": START}
        ledger.release(1, kind="a", to="all", noise=1.0, **given)
    with pytest.raises(InputError, match="batch holds position 3 twice"):
        checked(ledger.path)


def test_a_server_says_of_what_its_mean_is_made(tmp_path):
    value = torch.ones(D, dtype=torch.float64)

    def of(name, known):
        with record(tmp_path / f"{name}.jsonl", agent="server", agents=1, keep="all") as ledger:
            given = {"of": [], "value": value, "known": known}
            ledger.release(1, kind="mean", to="all", noise=0, **given)
        return checked(ledger.path, points=lambda round, agent, released: value)

    assert of("a", value)["points"].verdict is PASSED
    assert of("b", value)["messages"].verdict is PASSED
    assert of("c", 2 * value)["messages"].verdict is FAILED
    assert "it is declared as made of what was released" in of("d", None)["every release"].words


def test_a_log_without_transcripts_has_nothing_to_check(tmp_path):
    play(tmp_path, keep=())
    with pytest.raises(InputError, match="names no kept transcript"):
        checked(tmp_path)


def test_a_release_that_was_not_kept_whole_leaves_the_status_declared(tmp_path):
    with record(tmp_path / "part" / "0.jsonl", agent=0, agents=1, clip=1.0, keep="all") as ledger:
        given = {"value": START, "batch": [], "point": START}
        ledger.release(1, kind="a", to="all", noise=0, of=[{"owner": 0}], **given)
        ledger.release(1, kind="b", to="all", noise=0, of=[{"owner": 0}], value=START)
    found = checked(ledger.path)
    assert found["every release"].verdict is NOT_RUN
    assert "the batch or the point of vector 0 was not kept" in found["every release"].words
    assert found.status is Status.DECLARED


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gradients": 3}, "must be a function"),
        ({"gradients": {0: gradients}}, r"no function for agent 1; it has \[0\]"),
        ({"gradients": lambda p, at: np.zeros((len(at), 3))}, "a row for each clipped vector"),
        ({"gradients": lambda p, at: np.full((len(at), D), np.nan)}, "not finite"),
        ({"gradients": lambda p, at: None}, "returned NoneType"),
        ({"gradients": lambda p, at: np.array([["a"]])}, "must return numbers of at most 64 bits"),
        ({"gradients": lambda p, at: np.zeros((len(at), D), "g")}, "must return numbers of at mo"),
    ],
)
def test_an_oracle_that_gives_no_gradients_is_refused(tmp_path, given, message):
    play(tmp_path, own_noise=False, rounds=2)
    with pytest.raises(InputError, match=message):
        checked(tmp_path, **given)


def test_the_oracle_may_be_a_model_and_its_loss(tmp_path):
    torch.manual_seed(0)
    model, data = nn.Linear(3, 4), (torch.randn(40, 3), torch.randint(4, (40,)))
    oracle = per_example(model, {0: data})
    given = {"agent": 0, "agents": 1, "clip": 0.5, "rate": 0.5, "keep": "all"}
    with record(tmp_path / "0.jsonl", **given) as ledger:
        for t in range(1, 9):
            batch = ledger.batch(40)
            total = torch.zeros(16)
            for i in batch.tolist():
                model.zero_grad()
                x, y = data[0][i : i + 1], data[1][i : i + 1]
                nn.functional.cross_entropy(model(x), y).backward()
                each = torch.cat([p.grad.flatten() for p in model.parameters()])
                total += each * (0.5 / each.norm()).clamp(max=1.0)
            g = total + ledger.noise(16, 1.0)
            ledger.release(t, kind="g", to="all", noise=1.0, value=g, batch=batch, point=model)
    found = ledger.conformance(oracle)
    assert found["messages"].verdict is PASSED
    wrong = ledger.conformance(lambda p, at, agent: oracle(1.5 * p, at, agent=agent))
    assert wrong["messages"].verdict is FAILED


def test_sums_over_agents_and_rounds_are_taken_apart_by_their_names(tmp_path):
    """Agent 1 sends agent 0's vector on with its own of the round before, less pair noise."""
    rng = np.random.default_rng(0)
    pair = {t: rng.normal(size=D) for t in range(1, 7)}
    with record(tmp_path / "all.jsonl", agents=2, clip=1.0, keep="all") as ledger:
        last = None
        for t in range(1, 7):
            g = {}
            for k in range(AGENTS):
                each = gradients(START, np.arange(5) + t, k).numpy()
                g[k] = (each * np.minimum(1, 1 / np.linalg.norm(each, axis=1))[:, None]).sum(0)
            noise = [{"id": f"pair {t}", "std": 2.0, "known_to": [0, 1]}]
            ledger.release(
                t, kind="g", to=1, sender=0, of=[{"owner": 0, "vector": "g"}], noise=noise,
                value=g[0] + 2 * pair[t], batch=np.arange(5) + t, point=START,
            )  # fmt: skip
            of = [{"owner": 0, "vector": "g", "weight": 0.5}, {"owner": 1, "vector": "g"}]
            value = 0.5 * g[0] + g[1] - 2 * pair[t]
            if last is not None:
                of.append({"owner": 1, "vector": "g", "round": t - 1, "weight": -1})
                value = value - last
            ledger.release(
                t, kind="h", to=0, sender=1, of=of, noise=[{**noise[0], "weight": -1}],
                value=value, batch=(None, np.arange(5) + t, None)[: len(of)],
                point=(None, START, None)[: len(of)],
            )  # fmt: skip
            last = g[1]
    made = {
        "sound": lambda id, agent: pair[int(id.split()[1])],
        "other": lambda id, agent: pair[int(id.split()[1])] * (1 if agent else -1),
    }
    found = checked(ledger.path, sources=made["sound"])
    assert found["residuals"].verdict is PASSED
    assert found["knowledge"].verdict is PASSED
    assert found["knowledge"].tests == 24
    assert "every release" not in verdicts(found)
    found = checked(ledger.path, sources=made["other"])
    assert found["knowledge"].verdict is FAILED
    assert "is not what agent 0 makes of its seed" in found["knowledge"].words


def test_noise_that_comes_again_over_rounds_is_tested_as_declared(tmp_path):
    """The same source in every round: equal but for its sign, and no pair of rounds is accused."""
    z = np.random.default_rng(3).normal(size=200)
    for name, sign in (("sound", 1), ("fault", -1)):
        with record(tmp_path / f"{name}.jsonl", agent=0, agents=1, clip=1.0, keep="all") as ledger:
            for t in (1, 2, 3):
                ledger.release(
                    t, kind="g", to="all", of=[], noise=[{"id": "z", "std": 1.0}],
                    value=z * (sign if t == 2 else 1),
                )  # fmt: skip
        found = checked(ledger.path)
        assert found["residuals"].verdict is (PASSED if name == "sound" else FAILED)


def played(folder, scale, *, rounds=8, point=None, kind="model", known=True, declared=None):
    """One agent whose releases are scaled, and taken at another point, as it is told."""
    start = torch.zeros(D, dtype=torch.float64)
    given = {"agent": 0, "agents": 1, "clip": 1.0, "rate": 0.3, "keep": "all", **(declared or {})}
    with record(folder / "0.jsonl", **given) as ledger:
        model = start
        for t in range(1, rounds + 1):
            batch = ledger.batch(RECORDS)
            at = model if point is None else point(model)
            total = clipped(gradients(at, batch, 0)) + ledger.noise(D, STD, like=model)
            step = scale(t, len(batch))
            value = (model if known else 0.0) + step * total
            ledger.release(
                t, kind=kind.format(t), to="all", noise=STD, value=value, batch=batch, point=at,
                scale=step, **({"known": model} if known else {}),
            )  # fmt: skip
            model = value if known else model + value
    return folder


def sum_of(round, agent, released):
    return START + sum(one.value for one in released if one.round < round)


def last_of(round, agent, released):
    return next((one.value for one in released if one.round == round - 1), None)


@pytest.mark.parametrize("kind", ["model", "model {}"])
def test_a_scale_that_tells_the_size_of_a_batch_contradicts(tmp_path, kind):
    found = checked(played(tmp_path, lambda t, size: -0.05 / size, kind=kind), points=last_of)
    assert found.failed == ["numbers"]
    assert "is divided by the size of its batch" in found["numbers"].words


def test_scales_that_change_must_be_known_to_everybody(tmp_path):
    folder = played(tmp_path, lambda t, size: -0.1 / t, declared={"rounds": 8, "noise": STD})
    found = checked(folder, points=last_of)
    assert found.said == "declared; checked in rounds 1 to 8 but for numbers"
    assert "may depend on records" in found["numbers"].words
    steps = [torch.tensor([-0.1 / t], dtype=torch.float64) for t in range(1, 9)]
    assert checked(folder, points=last_of, public=[START, *steps]).status is Status.CHECKED


def test_gradients_at_points_that_nobody_looked_at_leave_the_status_declared(tmp_path):
    """A point that was not released may hide a step along a sum without noise."""

    def private(model):
        return model - 0.5 * clipped(gradients(model, np.arange(9), 0))

    folder = played(tmp_path, lambda t, size: -0.05, point=private, known=False)
    found = checked(folder, points=None, public=[])
    assert found.said == "declared; checked in rounds 1 to 8 but for points, numbers"
    assert checked(folder, points=sum_of).failed == ["points"]


DECLARED = {"rounds": 8, "scale": -0.05, "noise": STD}


def spelled(t, size):
    return -0.937523  # a record's pixels, in all rounds


def lower(t, size):
    return -0.05 if t < 5 else -0.025


def numbers(round, agent, released):
    """A rate that is halved once a released model is far enough, and an end that it says, too."""
    far = any(float(one.value.norm()) > 1e-9 for one in released if one.round < 5)
    return None if round > 6 else {"scale": -0.025 if far and round > 4 else -0.05}


@pytest.mark.parametrize(
    ("scale", "rounds", "declared", "how", "verdict", "words"),
    [
        (spelled, 8, {"rounds": 8, "noise": STD}, {}, NOT_RUN, "scale -0.937523 of model of"),
        (lambda t, size: -0.05, 8, DECLARED, {}, PASSED, "none differs"),
        (lambda t, size: -0.05, 8, {"scale": -0.05, "noise": STD}, {}, NOT_RUN, "the number of"),
        (lambda t, size: -0.05, 8, {**DECLARED, "noise": None}, {}, NOT_RUN, "noise 1.5 of model"),
        (lower, 8, {**DECLARED, "scale": [-0.05] * 4 + [-0.025] * 4}, {}, PASSED, "none differs"),
        (lower, 8, {**DECLARED, "scale": lambda t: lower(t, 0)}, {}, PASSED, "none differs"),
        (lower, 8, {**DECLARED, "scale": {"model": [-0.05] * 4 + [-0.025] * 4}}, {}, PASSED, ""),
        # Stopped by what only the training knows, and by a public rule of releases.
        (lambda t, size: -0.05, 5, DECLARED, {}, NOT_RUN, "the last round is 5 of 8"),
        (lower, 6, {**DECLARED, "scale": numbers}, {}, NOT_RUN, "test_conformance:numbers as nu"),
        (lower, 6, {**DECLARED, "scale": numbers}, {"numbers": numbers}, PASSED, "none differs"),
        (spelled, 6, {"noise": STD}, {"numbers": numbers}, FAILED, "is not -0.05, as was decl"),
        (lower, 7, {**DECLARED, "scale": numbers}, {"numbers": numbers}, FAILED, "after the end"),
    ],
)  # fmt: skip
def test_numbers_are_those_that_were_declared(
    tmp_path, scale, rounds, declared, how, verdict, words
):
    """A rate that spells a record, and steps that private losses end, are not called sound."""
    folder = played(tmp_path, scale, rounds=rounds, declared=declared)
    found = checked(folder, points=last_of, **how)
    assert (found["numbers"].verdict, words in found["numbers"].words) == (verdict, True)
    assert (found.status is Status.CHECKED) is (verdict is PASSED)


def test_lines_whose_numbers_no_header_declares_are_not_passed(tmp_path):
    """The clip norm is the median norm of a batch, the weight a count of records."""
    given = {"agent": 0, "agents": 1, "keep": "all", "noise": 1.0, "rounds": 1}
    for name, of in (("clip", {"clip": 0.371}), ("weight", {"clip": 1.0, "weight": 37.0})):
        with record(tmp_path / f"{name}.jsonl", **given) as ledger:
            ledger.release(
                1, kind="g", to="all", noise=1.0, of=[{"owner": 0, **of}], value=START,
                batch=[0], point=START,
            )  # fmt: skip
        found = checked(ledger.path)["numbers"]
        assert (found.verdict, f"{name} {of[name]:g} of g" in found.words) == (NOT_RUN, True)
        header = read_header({"schema": "releases-1", "agents": 1, **of, "noise": 1.0})
        entry = {"from": 0, "to": "all", "kind": "g", "noise": 1.0, "of": [{"owner": 0, **of}]}
        assert read_release(entry, header, round=1).loose == ()


PARTS = {"parts": [12, 12, 12, 12], "each": 1.0}


def by_parts(each):
    return torch.cat([clipped_rows(one, 1.0) for one in each.split(12, 1)], dim=1)


def normalised(each):
    return each / (each.norm(dim=1, keepdim=True) + 0.01)


@pytest.mark.parametrize(
    ("rule", "clip", "oracle", "failed"),
    [
        (by_parts, PARTS, None, []),
        (by_parts, {**PARTS, "each": [1.0, 1.0, 1.0, 0.5]}, None, ["messages"]),
        (by_parts, 1.0, None, ["messages"]),
        (by_parts, {"bounded": 2.0}, by_parts, []),
        (by_parts, {"bounded": 1.0}, by_parts, ["messages"]),
        (normalised, {"bounded": 1.0}, normalised, []),
        (torch.tanh, {"bounded": D**0.5}, torch.tanh, []),
        (torch.tanh, {"bounded": 1.0}, torch.tanh, ["messages"]),
    ],
)
@pytest.mark.parametrize("drawn", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_bound_may_be_kept_to_by_parts_or_by_a_rule(tmp_path, rule, clip, oracle, failed, drawn):
    """Declared as 2, four parts of 1 are no contradiction; declared as 1 they are one."""

    def each_of(point, positions, agent):
        return 12.0 * gradients(point, positions, agent)

    given = {"clip": clip, "rate": 0.5, "rounds": 20, "noise": STD, "keep": "all"}
    chance = np.random.default_rng(0)
    with record(tmp_path / "0.jsonl", agent=0, agents=1, **given) as ledger:
        for t in range(1, 21):
            batch = ledger.batch(RECORDS)
            each = each_of(START, batch, 0)
            noise = ledger.noise(D, STD, like=each) if drawn else chance.normal(0, STD, D)
            ledger.release(
                t, kind="g", to="all", noise=STD, batch=batch, point=START,
                value=rule(each).sum(dim=0) + torch.as_tensor(noise),
                rows=rule(each) if oracle else each,
            )  # fmt: skip
    asked = each_of if oracle is None else lambda p, at: oracle(each_of(p, at, 0))
    found = checked(ledger.path, gradients=asked)
    if drawn:
        assert ("messages" in found.failed) is bool(failed)
    assert bool(found.failed) is bool(failed)
    assert (found.status is Status.CHECKED) is not failed
    assert found.log.header.clip == read_clip(clip)
