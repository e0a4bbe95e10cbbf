"""The recorder: lines are on the disk before releases leave; what is no release is refused."""

import json
import os
import pickle
import random
import stat
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from overhear.privacy.errors import InputError, InputTypeError
from overhear.privacy.guarantee import Statement
from overhear.privacy.releases.chained_file import LedgerInUse
from overhear.privacy.releases.lines import Played
from overhear.privacy.releases.log import read_log
from overhear.reports.document.declared import assumed
from overhear.runs.recorder.record import record
from overhear.training.accounts.declared import account_of_releases

GIVEN = {"agent": 0, "agents": 3, "clip": 1.0, "rate": 0.1}
ONE = {"kind": "model", "to": [1, 2], "noise": 2.0}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def mu(ledger, name="eavesdropper"):
    return ledger.account(delta=1e-5, adversaries=[name])[name].mu_per_round


def test_a_line_is_synced_before_release_returns(tmp_path, monkeypatch):
    done = []
    ledger = record(tmp_path / "0.jsonl", **GIVEN)
    write, sync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda f, d: (done.append("write"), write(f, d))[1])
    monkeypatch.setattr(os, "fsync", lambda f: (done.append("sync"), sync(f))[1])
    ledger.release(1, **ONE)
    assert done == ["write", "sync"]
    assert len(lines(ledger.path)) == 2


def test_the_log_holds_no_value_and_no_position(tmp_path):
    with pytest.warns(UserWarning, match="they are private"):
        ledger = record(tmp_path / "0.jsonl", keep=[1], **GIVEN)
    batch = ledger.batch(1000)
    noise = ledger.noise(5, 2.0)
    value = torch.arange(5.0) + 0.123456 + noise
    ledger.release(1, value=value, batch=batch, point=torch.zeros(5), known=torch.ones(5), **ONE)
    found = lines(ledger.path)[1]
    assert found.keys() == {"round", "releases", "chain"}
    (release,) = found["releases"]
    assert release.keys() == {"from", "to", "kind", "noise", "of", "kept"}
    assert release["of"] == [{"owner": 0, "batch": "0", "sampler": "poisson"}]
    assert len(release["kept"]) == 64


def test_a_kept_transcript_is_for_its_owner_alone_and_its_digest_is_salted(tmp_path):
    digests = []
    for name in ("a", "b"):
        with pytest.warns(UserWarning, match="private"):
            ledger = record(tmp_path / f"{name}.jsonl", keep="all", **GIVEN)
        ledger.release(1, value=torch.zeros(5), batch=[1], point=torch.zeros(5), **ONE)
        digests.append(lines(ledger.path)[1]["releases"][0]["kept"])
        (file,) = (tmp_path / f"{name}.kept").iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert digests[0] != digests[1]  # a guess of the batch cannot be held against it


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"agents": None}, InputError, "agents is missing"),
        ({"agents": 0}, InputError, "agents=0 must be an integer"),
        ({"agent": 3}, InputError, r"agent=3 must be an integer in 0\.\.2"),
        ({"clip": 0}, InputError, "clip=0 must be above 0"),
        ({"clip": "tight"}, InputError, "clip='tight' must be a number"),
        ({"clip": {"parts": [2, 3], "each": [1.0]}}, InputError, "sizes of the parts"),
        ({"clip": {"parts": [0], "each": 1.0}}, InputError, "size of a part=0 must be an integer"),
        ({"rounds": 0}, InputError, "rounds=0 must be an integer"),
        ({"scale": "small"}, InputError, "scale='small' must be a number"),
        ({"scale": lambda t: 0.1}, InputError, "rounds is missing; scale= is a function"),
        ({"noise": {}}, InputError, "must name kinds of releases"),
        ({"rate": 1.5}, InputError, "rate=1.5 must lie in"),
        ({"unit": "person"}, InputError, "unit='person' must be"),
        ({"depends_on": "me"}, InputError, "depends_on='me' must be"),
        ({"links": "tls"}, InputError, "links='tls' must be"),
        ({"sampler": "shuffled"}, InputError, "sampler='shuffled' must be"),
        ({"keep": 5}, InputError, "keep=5 must be a list of rounds"),
        ({"keep": [-1]}, InputError, "must hold numbers of rounds"),
        ({"resume": True}, FileNotFoundError, "leave out resume=True"),
        ({"path": "."}, InputError, "is a folder; name a file in it"),
        ({"path": "log.txt"}, InputError, "must end in .jsonl"),
    ],
)
def test_settings_that_say_something_else_are_refused(tmp_path, changed, error, message):
    path = tmp_path / changed.get("path", "0.jsonl")
    given = {**GIVEN, **{key: of for key, of in changed.items() if key != "path"}}
    with pytest.raises(error, match=message):
        record(path, **given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"round": -1}, "round=-1 must be a whole number"),
        ({"round": 1.5}, "round=1.5 must be a whole number"),
        ({"round": 2}, "round=2 stands after round 3"),
        ({"round": 3}, "round 3 has a release 'model' to the same receiver already"),
        ({"noise": -1.0}, "std=-1 must be above 0"),
        ({"noise": float("nan")}, "std=nan must be a finite number"),
        ({"noise": "2"}, "noise='2' must be a deviation"),
        ({"noise": [{"std": 1, "sigma": 1}]}, "key 'sigma' of noise is unknown"),
        ({"to": [7]}, "to=7 must be an integer"),
        ({"to": None}, "to=None must be a list"),
        ({"to": "everybody"}, "to='everybody' must be the number"),
        ({"kind": "a\nb"}, "printable"),
        ({"of": [{"owner": 9}]}, "owner=9 must be an integer"),
        ({"of": [{"owner": 0, "weigth": 1}]}, "key 'weigth' of a vector"),
        ({"of": {"owner": 0}}, "must be a list of vectors"),
        ({"value": [1.0, float("nan")]}, "value holds nan at coordinate 1"),
        ({"value": "model"}, "value='model' must be a tensor"),
        ({"batch": [4, 2, 4]}, "batch holds position 4 twice"),
        ({"batch": [-1]}, "batch holds position -1"),
        ({"batch": [0.5]}, "must be the positions of its records"),
        ({"batch": ([1], [2])}, "batch is a tuple of 2, and `of` has 1 vectors"),
        ({"scale": 0}, "scale=0 leaves nothing"),
        ({"scale": 0.5}, "scale 0.5 of 'model' in round 4 is not 0.25, as record"),
        ({"noise": 2.0000001}, "noise 2.0000001 of 'model' in round 4 is not 2, as record"),
        ({"of": [{"owner": 0, "clip": 0.37}]}, "clip 0.37 of 'model' in round 4 is not 1, as"),
        ({"of": [{"owner": 0, "weight": 37}]}, "weight 37 of 'model' in round 4 is not 1, as"),
        ({"round": 7}, "round=7 comes after the last that was declared, rounds=6"),
        ({"scale": float("inf")}, "scale=inf must be a finite number"),
        ({"sender": 1}, "sender=1 is not agent 0, whose log this is"),
    ],
)
def test_what_is_no_release_is_refused_and_nothing_is_written(tmp_path, changed, message):
    declared = {"rounds": 6, "scale": 0.25, "noise": 2.0, "weight": {"model": 1.0}}
    ledger = record(tmp_path / "0.jsonl", **GIVEN, **declared)
    ledger.release(3, **ONE)
    before = ledger.path.read_bytes()
    with pytest.raises(InputError, match=message):
        ledger.release(**{"round": 4, **ONE, **changed})
    assert ledger.path.read_bytes() == before
    ledger.release(5, **ONE)
    assert len(read_log(ledger.path, partial=True).rounds) == 2


def test_without_a_clip_norm_nothing_is_released(tmp_path):
    ledger = record(tmp_path / "0.jsonl", agent=0, agents=2)
    with pytest.raises(InputError, match="clip is missing: without a bound"):
        ledger.release(1, kind="model", to=1, noise=1.0)
    ledger.release(1, kind="model", to=1, noise=1.0, of=[{"owner": 0, "clip": 2.0}])


def test_a_log_is_never_overwritten_and_has_one_writer(tmp_path):
    ledger = record(tmp_path / "0.jsonl", **GIVEN)
    with pytest.raises(FileExistsError, match="never overwritten"):
        record(tmp_path / "0.jsonl", **GIVEN)
    with pytest.raises(LedgerInUse):
        record(tmp_path / "0.jsonl", resume=True, **GIVEN)
    ledger.close()
    with pytest.raises(InputError, match="is closed"):
        ledger.release(1, **ONE)
    record(tmp_path / "0.jsonl", resume=True, **GIVEN).close()


def test_an_exception_leaves_the_line_which_counts(tmp_path):
    def fails():
        with record(tmp_path / "0.jsonl", **GIVEN) as ledger:
            ledger.release(1, **ONE)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fails()
    assert len(read_log(tmp_path / "0.jsonl", partial=True).rounds) == 1


def test_a_round_that_is_gone_through_again_counts_again(tmp_path):
    path = tmp_path / "0.jsonl"
    with record(path, **GIVEN) as ledger:
        for t in (1, 2, 3):
            ledger.release(t, **ONE)
    with record(path, resume=True, **GIVEN) as ledger:
        for t in (3, 4):
            ledger.release(t, **ONE)
    assert {"resumed_after": 2}.items() <= lines(path)[4].items()
    log = read_log(path, partial=True)
    assert list(log.rounds) == [Played(*at) for at in ((1, 0), (2, 0), (3, 0), (3, 1), (4, 0))]


@pytest.mark.parametrize(("half_mark", "torn"), [(b"", 1), (b'\n {"resumed_af', 2)])
def test_a_line_that_was_cut_off_counts_after_going_on(tmp_path, half_mark, torn):
    path = tmp_path / "0.jsonl"
    with record(path, **GIVEN) as ledger:
        ledger.release(1, **ONE)
        ledger.release(2, **ONE)
    path.write_bytes(path.read_bytes()[:-40] + half_mark)
    with record(path, resume=True, **GIVEN) as ledger:
        ledger.release(2, **ONE)
    assert read_log(path, partial=True).torn == torn
    assert ledger.account(delta=1e-5)["eavesdropper"].epsilon > 0


@pytest.mark.parametrize("last", [None, b"garbage", b"null", b"[]", b"", b"\xff\xfe"])
def test_a_last_line_that_was_changed_and_ends_as_a_line_does_is_refused(tmp_path, last):
    """It announced noise of 0.01, and counted as one more release of noise 2."""
    path = tmp_path / "0.jsonl"
    with record(path, **GIVEN) as ledger:
        ledger.release(1, **ONE)
        ledger.release(2, **ONE | {"noise": 0.01})
    whole = path.read_bytes().splitlines()
    path.write_bytes(
        b"\n".join([*whole[:-1], whole[-1][:-1] + b"]" if last is None else last, b""])
    )
    with pytest.raises(InputError, match="line 3"):
        read_log(path, partial=True)


def test_a_log_without_digests_is_read_that_was_cut_off_twice(tmp_path):
    path = tmp_path / "0.jsonl"
    with record(path, **GIVEN) as ledger:
        ledger.release(1, **ONE)
    plain = [{k: v for k, v in line.items() if k != "chain"} for line in lines(path)]
    text = "".join(json.dumps(line) + "\n" for line in plain)
    path.write_text(text + '{"round": 2, "rel\n {"resumed_after": 1')
    assert read_log(path, partial=True).torn == 2


@pytest.mark.parametrize("changed", [{"clip": 2.0}, {"agent": 1}, {"rate": 0.2}])
def test_going_on_with_other_settings_is_refused(tmp_path, changed):
    record(tmp_path / "0.jsonl", **GIVEN).close()
    with pytest.raises(InputError, match="go on with the settings that it began with"):
        record(tmp_path / "0.jsonl", resume=True, **{**GIVEN, **changed})


def test_going_on_with_a_changed_log_or_one_without_digests_is_refused(tmp_path):
    path = tmp_path / "0.jsonl"
    with record(path, **GIVEN) as ledger:
        ledger.release(1, **ONE)
    path.write_bytes(path.read_bytes().replace(b'"noise": 2.0', b'"noise": 9.0'))
    with pytest.raises(InputError, match="by its digest"):
        record(path, resume=True, **GIVEN)
    path.write_text('{"schema": "releases-1", "agent": 0, "agents": 3, "clip": 1.0, "rate": 0.1}\n')
    with pytest.raises(InputError, match="carries no digests"):
        record(path, resume=True, **GIVEN)


def test_only_batches_that_the_recorder_drew_count_as_sampled(tmp_path):
    with record(tmp_path / "0.jsonl", **GIVEN) as ledger:
        ledger.batch(100)
        ledger.release(1, **ONE)
        ledger.release(2, **ONE)  # no batch was drawn for it
    found = [of[0].of[0].rate for of in read_log(ledger.path, partial=True).rounds.values()]
    assert found == [0.1, 1.0]


def test_a_batch_drawn_twice_in_a_round_is_another_batch(tmp_path):
    with record(tmp_path / "0.jsonl", **GIVEN) as ledger:
        first, second = ledger.batch(1000), ledger.batch(1000, rate=0.2)
        with pytest.raises(InputError, match="2 batches of agent 0 were drawn"):
            ledger.release(1, **ONE)
        ledger.release(1, batch=second, **ONE)
        ledger.release(1, batch=first, **{**ONE, "kind": "momentum"})
        with pytest.raises(InputError, match="batch is none of the 2"):
            ledger.release(1, batch=[1, 2], **{**ONE, "kind": "other"})
    log = read_log(ledger.path, partial=True)
    found = [(release.of[0].batch, release.of[0].rate) for release in log.rounds[Played(1, 0)]]
    assert found == [("1", 0.2), ("0", 0.1)]
    assert len(ledger.account(delta=1e-5)) == 2  # the log can be read


def test_a_batch_drawn_after_a_release_of_another_one_in_its_round_has_its_own_name(tmp_path):
    with record(tmp_path / "0.jsonl", **GIVEN) as ledger:
        ledger.release(1, **ONE)  # of a batch that nobody drew here
        ledger.batch(100)
        ledger.release(1, **{**ONE, "kind": "second"})
    found = [release.of[0] for release in read_log(ledger.path, partial=True).rounds[Played(1, 0)]]
    assert [(one.batch, one.rate) for one in found] == [("0", 1.0), ("1", 0.1)]


def test_a_vector_that_is_carried_on_keeps_the_rate_of_its_batch(tmp_path):
    path = tmp_path / "0.jsonl"
    old = [{"owner": 0, "vector": "g", "round": 1, "weight": -1}]
    with record(path, **GIVEN) as ledger:
        ledger.batch(100)
        ledger.release(1, **ONE, of=[{"owner": 0, "vector": "g"}])
        ledger.batch(100)
        ledger.release(2, **ONE, of=[{"owner": 0, "vector": "g"}, *old])
    with record(path, resume=True, **GIVEN) as ledger:
        ledger.release(3, **ONE, of=old)
    assert np.isfinite(ledger.account(delta=1e-5).worst.epsilon)
    with (
        record(path, resume=True, **GIVEN) as ledger,
        pytest.raises(InputError, match=r"has the rates 0.1 and 1"),
    ):
        ledger.release(4, **ONE, of=[{**old[0], "rate": 1.0}])


def test_batches_are_poisson_and_no_two_are_the_same(tmp_path):
    """2,000 batches of 50 at rate .3: 30,000 expected; 5 sigma = 725 (false alarm below 1e-6)."""
    ledger = record(tmp_path / "0.jsonl", **GIVEN)
    drawn = [ledger.batch(50, rate=0.3) for _ in range(2000)]
    assert abs(sum(map(len, drawn)) - 30_000) < 725
    assert len({tuple(of.tolist()) for of in drawn}) > 1_990
    assert ledger.batch(5, rate=0.0).tolist() == []
    assert ledger.batch(5, rate=1.0).tolist() == [0, 1, 2, 3, 4]


def test_noise_is_normal_and_fresh_but_for_a_source_with_a_name(tmp_path):
    """10,000 values of deviation 3: 5 sigma of the variance is .64 (false alarm below 1e-6)."""
    ledger = record(tmp_path / "0.jsonl", **GIVEN)
    a, b = ledger.noise((100, 100), 3.0), ledger.noise((100, 100), 3.0)
    assert a.shape == (100, 100)
    assert abs(float(a.square().mean()) - 9.0) < 0.64
    assert not torch.equal(a, b)
    pair = ledger.noise(4, 1.0, "pair")
    assert torch.equal(pair, ledger.noise(4, 1.0, "pair"))
    with pytest.raises(InputError, match="one source has one of each"):
        ledger.noise(4, 2.0, "pair")
    array = ledger.noise(4, 1.0, like=np.zeros(1, dtype=np.float32))
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.float32
    for std in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="std="):
            ledger.noise(4, std)


def test_two_recorders_draw_other_noise(tmp_path):
    one, other = (record(tmp_path / f"{k}.jsonl", **{**GIVEN, "agent": k}) for k in (0, 1))
    assert not torch.equal(one.noise(4, 1.0), other.noise(4, 1.0))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_copy_of_the_process_draws_nothing(tmp_path):
    code = (
        "import os, sys\n"
        "from overhear.runs.recorder.record import record\n"
        f"ledger = record({str(tmp_path / '0.jsonl')!r}, agent=0, agents=3, clip=1.0)\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        ledger.noise(3, 1.0)\n"
        "    except ValueError as error:\n"
        "        os._exit(7 if 'copied into another process' in str(error) else 8)\n"
        "    os._exit(9)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
    with pytest.raises(InputError, match="cannot be pickled"):
        pickle.dumps(record(tmp_path / "1.jsonl", **GIVEN))


def test_one_file_may_hold_everybody(tmp_path):
    with record(tmp_path / "all.jsonl", agents=3, clip=1.0, rate=0.1) as ledger:
        for agent in (0, 1):
            ledger.batch(100, owner=agent)
            ledger.release(1, kind="model", to=2, noise=1.0, sender=agent)
        with pytest.raises(InputError, match="sender is missing"):
            ledger.release(2, **ONE)
        ledger.release(1, kind="mean", to="all", noise=0, of=[], sender="server")
    assert mu(ledger) == pytest.approx(1.0)


def test_a_server_and_clients_have_logs_of_their_own(tmp_path):
    with record(
        tmp_path / "server.jsonl", agent="server", agents=2, clip=1.0, unit="client"
    ) as log:
        with pytest.raises(InputError, match="the unit is a client"):
            log.batch(10)
        with pytest.raises(InputError, match="of is missing in a release of the server"):
            log.release(1, kind="sum", to="all", noise=1.0)
        log.release(1, kind="sum", to="all", noise=1.0, of=[{"owner": 0}, {"owner": 1}])
    assert mu(log) == pytest.approx(1.0)


def test_an_adapter_says_its_settings_and_listens_until_the_end(tmp_path):
    class Library:
        def __init__(self):
            self.settings = {"name": "lib", "agent": 0, "agents": 1, "clip": 1.0, "rate": 0.5}
            self.heard = []

        def attach(self, recorder):
            self.heard.append("attached")
            recorder.batch(10)
            recorder.release(1, kind="sum", to="all", noise=1.0)

        def detach(self):
            self.heard.append("detached")

    library = Library()
    with record(tmp_path / "lib", system=library) as ledger:
        pass
    assert library.heard == ["attached", "detached"]
    assert ledger.path == tmp_path / "lib" / "releases.jsonl"
    assert read_log(ledger.path, partial=True).header.system == "lib"
    library.settings = {"secret": 1.0}
    with pytest.raises(InputError, match="key 'secret' of the settings of the system is unknown"):
        record(tmp_path / "other", system=library)


def test_an_account_of_one_agents_log_says_that_others_are_missing(tmp_path):
    with record(tmp_path / "0.jsonl", **GIVEN) as ledger:
        ledger.release(1, **ONE)
        assert "no releases of agents 1, 2 are counted" in str(ledger.account(delta=1e-5))


def test_a_model_may_be_given_as_it_is(tmp_path):
    with pytest.warns(UserWarning, match="private"):
        ledger = record(tmp_path / "0.jsonl", keep=[1], **GIVEN)
    with pytest.raises(InputError, match="value is missing, and round 1 is kept"):
        ledger.release(1, **ONE)
    ledger.release(1, value=nn.Linear(2, 2), point=nn.Linear(2, 2), batch=[0], **ONE)
    ledger.release(2, **ONE)


def test_the_script_of_a_user_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sent = []
    names = {
        "record": record, "D": 8, "lr": 0.1, "mixed": torch.zeros(8), "records": range(640),
        "model": None, "clipped_sum": lambda model, records, batch: torch.ones(8),
        "send": lambda peer, message: sent.append(peer),
    }  # fmt: skip
    exec(  # noqa: S102
        'with record("ledger/agent-0.jsonl", agent=0, agents=6, clip=1.0, rate=0.1) as ledger:\n'
        "    for t in range(1, 101):\n"
        "        batch = ledger.batch(len(records))\n"
        "        g = clipped_sum(model, records, batch) + ledger.noise(D, std=2.0)\n"
        '        ledger.release(t, kind="model", to=[1, 5], noise=2.0)\n'
        "        for peer in (1, 5): send(peer, mixed - lr * g / 64)\n",
        names,
    )
    assert sent == [1, 5] * 100
    assert mu(names["ledger"], "neighbour:1") == pytest.approx(0.5)


def test_whatever_is_accepted_can_be_read_and_accounted_for(tmp_path):
    """40 recorders with 25 calls each by chance: what contradicts itself is refused before."""
    rng, accepted = random.Random(0), 0
    for number in range(40):
        path = tmp_path / f"{number}.jsonl"
        given = {"agents": 2, "clip": 1.0, "rate": 0.1, "sampler": rng.choice([None, "poisson"])}
        ledger, t = record(path, **given), 1
        for _ in range(25):
            if rng.random() < 0.1:
                ledger.close()
                ledger, t = record(path, resume=True, **given), max(0, t - rng.randrange(3))
            t += rng.random() < 0.5
            for _ in range(rng.randrange(3)):
                ledger.batch(9, rng.choice([None, 0.3]), owner=rng.randrange(2))
            try:
                ledger.release(t, **_some_release(rng, t))
            except InputError:
                continue
            accepted += 1
        ledger.close()
        log = read_log(path)
        found = account_of_releases(log, statement=Statement(delta=1e-5))
        assert found.worst.epsilon > 0 or not any(log.rounds.values())
    assert accepted > 300


def _some_release(rng, t):
    of = None
    if rng.random() < 0.7:
        of = [
            {
                "owner": rng.randrange(2),
                **rng.choice([{}, {"vector": "g"}, {"vector": "g", "clip": 2.0}]),
                **rng.choice([{}, {}, {"batch": rng.randrange(2)}, {"rate": 0.3}]),
                **rng.choice([{}, {}, {"vector": "g", "round": max(0, t - rng.randrange(3))}]),
            }
            for _ in range(rng.randrange(1, 3))
        ]
    noise = [1.0, 0, [{"std": 1.0, "id": "z"}], [{"std": 1.0, "id": "z", "known_to": [1]}]]
    return {
        "sender": rng.randrange(2), "kind": rng.choice("abc"), "to": rng.choice([[0, 1], "all"]),
        "noise": rng.choice(noise), "of": of,
    }  # fmt: skip


def test_a_source_is_one_as_an_array_and_as_a_tensor(tmp_path):
    with record(tmp_path / "a.jsonl", agent=0, agents=2, clip=1.0) as ledger:
        array = ledger.noise(5, std=2.0, id="n", like=np.zeros(1))
        tensor = ledger.noise(5, std=2.0, id="n", like=torch.zeros(1, dtype=torch.float64))
        assert isinstance(array, np.ndarray)
        assert isinstance(tensor, torch.Tensor)
        assert (array == tensor.numpy()).all()
        with pytest.raises(InputError, match=r"\(float64 on cpu\), .*\(float32 on cpu\)"):
            ledger.noise(5, std=2.0, id="n", like=np.zeros(1, np.float32))
        assert ledger.noise(3, std=1.0, like=np.zeros(1, ">f8")).dtype == np.float64


def test_arrays_and_tensors_are_laid_end_to_end_whatever_the_default_device(tmp_path):
    value = [np.arange(4.0), torch.arange(4.0, dtype=torch.float64)]
    with record(tmp_path / "a.jsonl", agent=0, agents=2, clip=1.0) as ledger:
        with torch.device("meta"):
            ledger.release(1, kind="model", to=1, noise=2.0, value=value)
        with pytest.raises(InputTypeError, match="must be a tensor or array"):
            ledger.release(2, kind="model", to=1, noise=2.0, value=b"12")


def test_arrays_are_released_while_torch_is_being_imported(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    with record(tmp_path / "a.jsonl", agent=0, agents=2, clip=1.0) as ledger:
        ledger.release(1, kind="model", to=1, noise=2.0, value=np.arange(4.0))
    assert len(read_log(tmp_path / "a.jsonl", partial=True).rounds) == 1


def test_noise_of_an_earlier_session_cannot_be_drawn_again_under_its_name(tmp_path):
    """Else two releases of one vector would count as one, and two looks at it be taken."""
    given = {"agent": 0, "agents": 2, "clip": 1.0}
    source = [{"id": "mask", "std": 1.0}]
    with record(tmp_path / "0.jsonl", **given) as ledger:
        ledger.noise(3, 1.0, id="mask")
        ledger.release(1, kind="a", to=1, of=[{"owner": 0, "vector": "g"}], noise=source)
    with record(tmp_path / "0.jsonl", **given, resume=True) as ledger:
        with pytest.raises(InputError, match="noise 'mask' is that of an earlier session"):
            ledger.noise(3, 1.0, id="mask")
        assert len(ledger.noise(3, 1.0, id="mask 2")) == 3


def test_nothing_is_released_once_the_log_is_gone(tmp_path):
    with record(tmp_path / "0.jsonl", agent=0, agents=2, clip=1.0) as ledger:
        ledger.release(1, kind="a", to=1, noise=1.0)
        (tmp_path / "0.jsonl").unlink()
        with pytest.raises(FileNotFoundError, match="was removed while it was written"):
            ledger.release(2, kind="a", to=1, noise=1.0)


@pytest.mark.parametrize(
    "value",
    [torch.eye(2).to_sparse(), torch.ones(2, device="meta"), [10**400, 2], np.ones(2, "g")],
    ids=["sparse", "without data", "too large", "long double"],
)
def test_a_value_that_is_no_vector_is_refused_in_a_sentence(tmp_path, value):
    with (
        record(tmp_path / "0.jsonl", agent=0, agents=2, clip=1.0) as ledger,
        pytest.raises(InputTypeError, match="must be a tensor or array of floats, dense"),
    ):
        ledger.release(1, kind="a", to=1, noise=1.0, value=value)


@pytest.mark.filterwarnings("ignore:transcripts of")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_values_of_few_digits_are_recorded_and_not_kept(tmp_path, dtype):
    """In bfloat16 rounding would let a release without its noise pass for one that has it."""
    value = torch.ones(3).to(dtype)
    given = {"kind": "a", "to": 1, "noise": 1.0, "value": value}
    with record(tmp_path / "0.jsonl", agent=0, agents=2, clip=1.0, keep=[2]) as ledger:
        ledger.release(1, **given)
        with pytest.raises(InputError, match="hides faults as large as the noise"):
            ledger.release(2, **given)


def test_a_system_that_is_neither_a_name_nor_an_adapter_is_refused(tmp_path):
    with pytest.raises(InputTypeError, match="must be the name of the system, or what an adapter"):
        record(tmp_path / "0.jsonl", agent=0, agents=2, clip=1.0, system={"name": "mine"})


def test_noise_that_is_lost_in_the_rounding_of_what_leaves_is_refused(tmp_path):
    ledger = record(tmp_path / "0.jsonl", **GIVEN)
    model = torch.tensor([0.1, 250_000.0])
    late = {**ONE, "known": model, "value": model, "scale": -0.01}
    with pytest.raises(InputError, match=r"known is as large as 250000 \(coordinate 1\).* 0\.02:"):
        ledger.release(1, **late)
    with pytest.raises(InputError, match="value is as large as 250000"):
        ledger.release(1, **{**late, "known": None})
    pair = {"std": 1e6, "id": "pair", "known_to": [0, 1]}  # hides nothing from agent 1
    with pytest.raises(InputError, match="known is as large"):
        ledger.release(1, **{**late, "noise": [pair, {"std": 2.0}]})
    with pytest.raises(InputError, match="bfloat16"):
        ledger.release(1, **{**late, "known": model.bfloat16() / 1e4})
    assert len(lines(ledger.path)) == 1
    # In more digits, with small values, by itself and beside no noise it is recorded.
    noised = torch.tensor([2.0, -3.0])
    ledger.release(1, **{**late, "known": model.double(), "value": model.double()})
    ledger.release(2, **{**late, "known": model / 1e6, "value": model / 1e6})
    ledger.release(3, **{**ONE, "value": noised, "scale": 1.0})
    ledger.release(4, **{**late, "noise": 0})
    assert len(lines(ledger.path)) == 5


def test_noise_that_meets_the_sum_first_is_said_and_assumed(tmp_path):
    ledger = record(tmp_path / "0.jsonl", **GIVEN)
    model = 0.05 * torch.ones(100_000)  # an ordinary model, and noise of 4e-4 on a mean update
    update = {**ONE, "noise": 4e-4, "known": model, "value": model}
    with pytest.raises(InputError, match="say noise_first=True, which is then assumed"):
        ledger.release(1, **update)
    with pytest.raises(InputError, match="noise_first='yes' must be true or false"):
        ledger.release(1, **update, noise_first="yes")
    ledger.release(1, **update, noise_first=True)
    log = read_log(ledger.path, partial=True)
    assert log.noise_first == 1
    a5 = assumed(log.header, noise_first=log.noise_first)[4]
    assert "In 1 of the releases it was added to the sum before anything else" in a5.text
    assert a5.status == "assumed"
