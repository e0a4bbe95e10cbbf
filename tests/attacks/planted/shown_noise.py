"""What faults of the noise's size and of its streams do to draws and messages."""

import functools
from collections.abc import Callable
from unittest.mock import patch

import torch

from overhear.training.engine.randomness import SecretRandomness
from tests.attacks.planted.noise import LATE
from tests.attacks.planted.seams import ROUNDS
from tests.attacks.planted.small_runs import (
    SIZES,
    draws,
    noise_added,
    planted,
    receivers,
    senders,
    short_run,
)

_SIZE = 6.0  # expected in a batch of the short runs


@functools.cache
def _sound() -> torch.Tensor:
    return noise_added(short_run())


def _factors(name: str) -> torch.Tensor:
    """(15, 243) what each value of noise was multiplied by."""
    return noise_added(short_run(name)) / _sound()


def _is(found: torch.Tensor, wanted: torch.Tensor | float) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(wanted).double().expand_as(found), rtol=1e-6, atol=1e-6
    )


def _times(name: str, factor: float) -> Callable[[], None]:
    return lambda: _is(_factors(name), factor)


def _on_rows(name: str, rows: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """The rows' own factors, (15,)."""
    return lambda: _is(_factors(name), rows().double()[:, None])


def _on_coordinates(name: str, factors: torch.Tensor) -> Callable[[], None]:
    return lambda: _is(_factors(name), factors)


def _tensors(*factors: float) -> torch.Tensor:
    return torch.cat([torch.full((size,), of) for size, of in zip(SIZES, factors, strict=True)])


def _firsts() -> torch.Tensor:
    """(15,) whether a row is the first of its agent's that is not its own."""
    others = receivers() != senders()
    chosen = torch.zeros(len(others), dtype=torch.bool)
    for agent in range(5):
        chosen[int((others & (receivers() == agent)).nonzero()[0])] = True
    return chosen


def _seventh() -> torch.Tensor:
    return torch.where(torch.arange(sum(SIZES)) % 7 == 0, 0.5, 1.0)


def _one_link() -> None:
    factors = _factors("one link without noise")
    _is(factors, 1.0 - (torch.arange(15) == int(_firsts().nonzero()[0])).double()[:, None])


def _in_rounds(name: str, factors: dict[int, float]) -> Callable[[], None]:
    def check() -> None:
        for number, factor in factors.items():
            _is(draws(name, round=number), factor * draws(round=number))

    return check


def _empty_batches() -> None:
    name = "no noise for an empty batch"
    run = short_run(name, rate=0.05)
    sizes = torch.tensor([len(at) for at in run.rounds[1].recorded.batches[0]])
    assert (sizes == 0).any()
    assert (sizes > 0).any()
    kept = (sizes > 0)[receivers()].double()
    _is(noise_added(run) / noise_added(short_run(rate=0.05)), kept[:, None])


def _last_agent() -> None:
    name = "no noise of the last agent from round 15 on"
    run, sound = short_run(name, rounds=15), short_run(rounds=15)
    z, kept = run.rounds[15].recorded.noise[0], receivers() != 4
    _is(z / sound.rounds[15].recorded.noise[0], kept.double()[:, None])
    _is(run.rounds[14].recorded.noise[0], sound.rounds[14].recorded.noise[0])


def _same(name: str, one: dict[str, int], other: dict[str, int], *rows: int) -> Callable[[], None]:
    """Two draws are one with the fault, and another without; of two rows where they are given."""
    first, second = rows or (slice(None), slice(None))

    def check() -> None:
        assert torch.equal(draws(name, **one)[first], draws(name, **other)[second])
        assert not torch.equal(draws(**one)[first], draws(**other)[second])

    return check


def _antithetic() -> None:
    name = "antithetic noise in the next round"
    assert torch.equal(draws(name, round=6), -draws(name, round=5))
    assert torch.equal(draws(name, round=5), draws(round=5))


def _one_root(name: str) -> Callable[[], None]:
    def drawn() -> torch.Tensor:
        source = SecretRandomness()
        return source.normal(round=1, call=0, rows=[0], width=4, dtype=torch.float64)

    def check() -> None:
        with planted(name), patch("time.time", lambda: 1_000.5):
            assert torch.equal(drawn(), drawn())
        assert not torch.equal(drawn(), drawn())

    return check


def _second() -> None:
    _one_root("root of the second that it is")()
    with planted("root of the second that it is"):
        with patch("time.time", lambda: 1_000.5):
            one = SecretRandomness().normal(round=1, call=0, rows=[0], width=4, dtype=torch.float64)
        known = SecretRandomness(1_000)
    other = known.normal(round=1, call=0, rows=[0], width=4, dtype=torch.float64)
    assert torch.equal(one, other)


def _roots(name: str, *, same: bool) -> Callable[[], None]:
    """Whether two roots of other entropy draw the same while clocks stand still."""

    def root(entropy: int) -> torch.Tensor:
        with (
            planted(name),
            patch("secrets.randbits", lambda bits: entropy),
            patch("time.time", lambda: 1_000.5),
            patch("time.time_ns", lambda: 10**12),
        ):
            source = SecretRandomness()
        return source.normal(round=1, call=0, rows=[0], width=4, dtype=torch.float64)

    def check() -> None:
        assert torch.equal(root(5 + 2**40), root(5 + 2**41)) is same
        assert not torch.equal(root(5), root(5)) or same

    return check


def _by_sizes(name: str, factor: Callable[[torch.Tensor], torch.Tensor], *, rate: float):
    """Rows' factors from the sizes of their agents' batches, (15,)."""

    def check() -> None:
        run = short_run(name, rate=rate)
        sizes = torch.tensor([len(at) for at in run.rounds[1].recorded.batches[0]])
        assert len(set(sizes.tolist())) > 1
        wanted = factor(sizes.double())[receivers()]
        _is(noise_added(run) / noise_added(short_run(rate=rate)), wanted[:, None])

    return check


def _correlated() -> None:
    sound, found = draws(), draws("two agents' noise with correlation .3")
    _is(found[11], 0.3 * sound[4] + 0.91**0.5 * sound[11])
    assert torch.equal(found[:11], sound[:11])


def _second_phase() -> None:
    name = "no noise in the second phase"
    assert torch.equal(draws(name, call=0), draws(call=0))
    assert not draws(name, call=1).any()


_LESS = 2.0**-0.5
SHOWN: dict[str, Callable[[], None]] = {
    "noise halved": _times("noise halved", 0.5),
    "noise halved in sampled rounds": _times("noise halved in sampled rounds", 0.5),
    "noise divided by the batch size": _times("noise divided by the batch size", 1 / _SIZE),
    "noise divided by the root of the batch size": _times(
        "noise divided by the root of the batch size", _SIZE**-0.5
    ),
    "deviation read as a variance": _times("deviation read as a variance", 1.62755**-0.5),
    "noise halved on one release": _on_rows(
        "noise halved on one release", lambda: 1.0 - 0.5 * _firsts().double()
    ),
    "noise on the first release alone": _on_rows("noise on the first release alone", _firsts),
    "noise of agent 0 alone": _on_rows("noise of agent 0 alone", lambda: receivers() == 0),
    "one link without noise": _one_link,
    "noise halved from round 13 on": _in_rounds(
        "noise halved from round 13 on", {1: 1.0, LATE - 1: 1.0, LATE: 0.5, ROUNDS: 0.5}
    ),
    "no noise on biases": _on_coordinates("no noise on biases", _tensors(1.0, 0.0, 1.0, 0.0)),
    "half noise on biases": _on_coordinates("half noise on biases", _tensors(1.0, 0.5, 1.0, 0.5)),
    "noise a fifth smaller on one tensor": _on_coordinates(
        "noise a fifth smaller on one tensor", _tensors(1.0, 1.0, 1.0, 0.8)
    ),
    "noise halved on every seventh coordinate": _on_coordinates(
        "noise halved on every seventh coordinate", _seventh()
    ),
    "no noise for an empty batch": _empty_batches,
    "no noise of the last agent from round 15 on": _last_agent,
    "less noise in training than the ledger says": _in_rounds(
        "less noise in training than the ledger says", {1: _LESS, ROUNDS: _LESS}
    ),
    "less noise in the last round of training": _in_rounds(
        "less noise in the last round of training", {1: 1.0, ROUNDS - 1: 1.0, ROUNDS: _LESS}
    ),
    "no noise in the last round of training": _in_rounds(
        "no noise in the last round of training", {1: 1.0, ROUNDS - 1: 1.0, ROUNDS: 0.0}
    ),
    "seed reused for two releases": _same("seed reused for two releases", {}, {}, 4, 5),
    "seed reused for two calls": _same("seed reused for two calls", {"call": 0}, {"call": 1}),
    "seed reused for two rounds": _same("seed reused for two rounds", {"round": 3}, {"round": 4}),
    "generator reseeded every 20 rounds": _same(
        "generator reseeded every 20 rounds", {"round": 1}, {"round": 21}
    ),
    "one seed for all agents": _same("one seed for all agents", {}, {}, 0, 14),
    "seed shared by two agents five rounds apart": _same(
        "seed shared by two agents five rounds apart", {"round": 2}, {"round": 7}, 4, 11
    ),
    "antithetic noise in the next round": _antithetic,
    "one root in every run": _one_root("one root in every run"),
    "root of the second that it is": _second,
    "root of the nanosecond that it is": _roots("root of the nanosecond that it is", same=True),
    "root of the process and the host": _one_root("root of the process and the host"),
    "root of 32 bits": _roots("root of 32 bits", same=True),
    "root of a clock that nobody can hold": _roots(
        "root of a clock that nobody can hold", same=False
    ),
    "no noise in the second phase": _second_phase,
    "no noise on a sum of 0": _by_sizes(
        "no noise on a sum of 0", lambda sizes: (sizes > 0).double(), rate=0.05
    ),
    "noise by the realised batch size": _by_sizes(
        "noise by the realised batch size", lambda sizes: sizes / _SIZE, rate=0.5
    ),
    "noise with the decay of a learning rate": _in_rounds(
        "noise with the decay of a learning rate", {1: 1.0, 11: 1 / 1.2, ROUNDS: 1 / 1.46}
    ),
    "two agents' noise with correlation .3": _correlated,
}
