"""Faults of how much noise there is: everywhere, on some coordinates, of some agents or rounds."""

from contextlib import AbstractContextManager

import torch

from overhear.training.engine.tensor_round import TensorRound
from overhear.training.step.values import Edges, Value
from tests.attacks.planted.planted import Faults, Kind, Origin
from tests.attacks.planted.seams import Draw, changed_noise, expected_size, scaled_draws, tensors_of

fault = Faults(Kind.NOISE_SIZE)

LATE = 13  # the first round after those that an audit watches by default
_EVERY_BATCH = "training.sampling_rate=1.0"


def ones(like: Value) -> torch.Tensor:
    """(rows, 1) for a value of noise."""
    return torch.ones(like.rows.shape[0], 1)


def own_rows(round: TensorRound, like: Value) -> torch.Tensor:
    """(rows,) which rows are of self-loops; none where the noise is not on links."""
    if isinstance(like, Edges):
        return round._links.receivers == round._links.senders
    return torch.zeros(like.rows.shape[0], dtype=torch.bool)


def first_of_each(round: TensorRound, like: Value) -> torch.Tensor:
    """(rows,) for each receiver the first link that is not its own; else the first row."""
    chosen = torch.zeros(like.rows.shape[0], dtype=torch.bool)
    if not isinstance(like, Edges):
        chosen[0] = True
        return chosen
    seen = set[int]()
    own = own_rows(round, like).tolist()
    for row, receiver in enumerate(round._links.receivers.tolist()):
        if not own[row] and receiver not in seen:
            seen.add(receiver)
            chosen[row] = True
    return chosen


@fault(
    "noise halved",
    "Half the noise doubles mu: of epsilon 8 at delta 1e-5 it makes 18.8.",
    Origin.FIRST,
    settings=(_EVERY_BATCH,),
)
def noise_halved() -> AbstractContextManager[None]:
    """All noise at half its deviation, after it was drawn and recorded."""
    return noise_times(0.5)


def noise_times(share: float) -> AbstractContextManager[None]:
    """All noise at this share of its deviation, after it was drawn and recorded."""
    return changed_noise(lambda _, like: share * ones(like))


@fault(
    "noise halved on one release",
    "One of n releases counts four times: mu grows by sqrt(1 + 3 / n).",
    Origin.FIRST,
    settings=(_EVERY_BATCH,),
)
def noise_halved_once() -> AbstractContextManager[None]:
    """One release of each batch at half its noise; without links, that of the first agent."""

    def share(round: TensorRound, like: Value) -> torch.Tensor:
        return 1.0 - 0.5 * first_of_each(round, like)[:, None].float()

    return changed_noise(share)


@fault(
    "one link without noise",
    "Anyone who reads that link sees a gradient: epsilon is infinite.",
    Origin.FIRST,
)
def one_link_without_noise() -> AbstractContextManager[None]:
    """The first row that is sent carries no noise."""

    def share(round: TensorRound, like: Value) -> torch.Tensor:
        kept = ones(like)
        kept[int(first_of_each(round, like).nonzero()[0])] = 0.0
        return kept

    return changed_noise(share)


def clean_self_gradient() -> AbstractContextManager[None]:
    """The own gradient, with which an agent goes on, carries no noise."""
    return changed_noise(lambda round, like: 1.0 - own_rows(round, like)[:, None].float())


@fault(
    "noise on the first release alone",
    "The other releases of a batch are clean: epsilon is infinite.",
    Origin.OUTSIDE,
)
def first_release_only() -> AbstractContextManager[None]:
    """Of the rows of an agent's batch the first alone carries noise."""
    return changed_noise(lambda round, like: first_of_each(round, like)[:, None].float())


@fault(
    "noise halved in sampled rounds",
    "Half the noise at rate .2 makes 30.3 of epsilon 8.",
    Origin.OUTSIDE,
    kind=Kind.MEASURED,
    statistical=True,
)
def draws_halved() -> AbstractContextManager[None]:
    """Every source draws with half the deviation, so that what is recorded is halved, too."""
    return scaled_draws(lambda at, width: 0.5)


@fault(
    "noise halved from round 13 on",
    "Half the noise in twelve of 24 rounds makes 22.8 of epsilon 8.",
    Origin.OUTSIDE,
    statistical=True,
)
def halved_late() -> AbstractContextManager[None]:
    """The same from a round on that is not watched by default."""
    return scaled_draws(lambda at, width: 0.5 if at.round >= LATE else 1.0)


def _on_biases(scale: float) -> AbstractContextManager[None]:
    def of(at: Draw, width: int) -> torch.Tensor:
        kept = torch.ones(width)
        for name, where in tensors_of(at, width):
            if name.endswith("bias"):
                kept[where] = scale
        return kept

    return scaled_draws(of)


@fault(
    "no noise on biases",
    "The biases' gradients are seen, and with them the batch's classes: epsilon is infinite.",
    Origin.OUTSIDE,
)
def none_on_biases() -> AbstractContextManager[None]:
    """No noise on the coordinates of biases."""
    return _on_biases(0.0)


@fault(
    "half noise on biases",
    "A record whose gradient lies on the biases has twice the mu: 30.3 for epsilon 8.",
    Origin.OUTSIDE,
)
def half_on_biases() -> AbstractContextManager[None]:
    """Half the noise on the coordinates of biases."""
    return _on_biases(0.5)


def _size(at: Draw) -> float:
    return expected_size(at.setting, [((), range(max(at.sizes.values(), default=2)))])


@fault(
    "noise divided by the batch size",
    "Noise is B times too small: mu grows B fold, 28.75 fold on digits.",
    Origin.OUTSIDE,
)
def divided_twice() -> AbstractContextManager[None]:
    """The deviation is divided by the batch size, and the noisy sum once more."""
    return scaled_draws(lambda at, width: 1.0 / _size(at))


@fault(
    "noise divided by the root of the batch size",
    "Noise added to each record and averaged with them: mu grows sqrt(B) fold, 5.4 fold on digits.",
    Origin.OUTSIDE,
)
def divided_by_root() -> AbstractContextManager[None]:
    """Noise for each record, averaged with the batch: its deviation falls by sqrt(B)."""
    return scaled_draws(lambda at, width: _size(at) ** -0.5)


def _by_holder(at: Draw, share: dict[int, float], *, others: float) -> torch.Tensor | float:
    """(rows, 1) a factor for each agent's rows; 1 where no agent holds them."""
    if at.holders is None:
        return 1.0
    return torch.tensor([[share.get(holder, others)] for holder in at.holders])


@fault(
    "noise of agent 0 alone",
    "All other agents send gradients: epsilon is infinite.",
    Origin.OUTSIDE,
)
def agent_0_alone() -> AbstractContextManager[None]:
    """Agents other than 0 add none."""
    return scaled_draws(lambda at, width: _by_holder(at, {0: 1.0}, others=0.0))


@fault(
    "no noise of the last agent from round 15 on",
    "Ten rounds of one agent are clean: epsilon is infinite for its records.",
    Origin.HOLDOUT,
)
def last_agent_late() -> AbstractContextManager[None]:
    """The last agent adds none from round 15 on."""

    def scale(at: Draw, width: int) -> torch.Tensor | float:
        if at.round < 15 or at.holders is None:
            return 1.0
        return _by_holder(at, {max(at.holders): 0.0}, others=1.0)

    return scaled_draws(scale)


@fault(
    "no noise for an empty batch",
    "Zeros tell that a batch is empty, which a record's presence rules out: epsilon is infinite.",
    Origin.HOLDOUT,
    settings=("training.sampling_rate=0.01",),
)
def none_on_empty() -> AbstractContextManager[None]:
    """An agent whose batch is empty sends zeros: there is nothing to hide, somebody thought."""

    def scale(at: Draw, width: int) -> torch.Tensor | float:
        empty = {agent: 0.0 for agent, size in at.sizes.items() if size == 0}
        return _by_holder(at, empty, others=1.0)

    return scaled_draws(scale)


@fault(
    "deviation read as a variance",
    "Noise of sqrt(1.63) in place of 1.63: epsilon 12.5 for 8.",
    Origin.OUTSIDE,
)
def variance_given() -> AbstractContextManager[None]:
    """What is given as a deviation is read as a variance."""
    sigma = 1.62755  # noise multiplier of the runs that are audited
    return scaled_draws(lambda at, width: sigma**-0.5)


@fault(
    "noise a fifth smaller on one tensor",
    "A record whose gradient lies on that tensor has mu / .8: 12.0 for epsilon 8.",
    Origin.HOLDOUT,
)
def one_tensor() -> AbstractContextManager[None]:
    """The noise of the last parameter tensor is a fifth smaller."""

    def of(at: Draw, width: int) -> torch.Tensor:
        kept = torch.ones(width)
        for _, where in tensors_of(at, width)[-1:]:
            kept[where] = 0.8
        return kept

    return scaled_draws(of)


@fault(
    "noise halved on every seventh coordinate",
    "A record whose gradient lies there has twice the mu: 30.3 for epsilon 8.",
    Origin.HOLDOUT,
)
def every_seventh() -> AbstractContextManager[None]:
    """Half the noise on every seventh coordinate."""

    def of(at: Draw, width: int) -> torch.Tensor:
        kept = torch.ones(width)
        kept[::7] = 0.5
        return kept

    return scaled_draws(of)


@fault(
    "no noise in the second phase",
    "What is sent in the second phase of a round is a gradient: epsilon is infinite.",
    Origin.HOLDOUT,
    settings=("algorithm.name=dp-netfleet", "audit.canaries=200"),
)
def second_phase_clean() -> AbstractContextManager[None]:
    """The second release of a round, of another phase, carries no noise."""
    return scaled_draws(lambda at, width: 0.0 if at.call == 1 else 1.0)


@fault(
    "no noise on a sum of 0",
    "Zeros tell that a batch is empty, which a record's presence rules out: epsilon is infinite.",
    Origin.HOLDOUT,
    settings=("training.sampling_rate=0.01",),
)
def none_on_zeros() -> AbstractContextManager[None]:
    """A sum that is 0 is sent as it is, after its noise was drawn and recorded."""
    return changed_noise(lambda round, like: (like.rows != 0).any(dim=1, keepdim=True).float())


@fault(
    "noise by the realised batch size",
    "A batch of b records has b / B of its noise: mu of that round is B / b times "
    "what is stated, and the noise tells b.",
    Origin.HOLDOUT,
)
def by_batch_ratio() -> AbstractContextManager[None]:
    """Noise times how many records the batch has over how many are expected."""

    def scale(at: Draw, width: int) -> torch.Tensor | float:
        expected = _size(at)
        return _by_holder(at, {a: n / expected for a, n in at.sizes.items()}, others=1.0)

    return scaled_draws(scale)


@fault(
    "noise with the decay of a learning rate",
    "Noise is divided by 1 + .02 (t - 1) in round t: mu of the last of 24 rounds is "
    "1.46 times what is stated.",
    Origin.HOLDOUT,
)
def decaying() -> AbstractContextManager[None]:
    """Noise falls from round to round as a learning rate does."""
    return scaled_draws(lambda at, width: 1.0 / (1.0 + 0.02 * max(at.round - 1, 0)))
