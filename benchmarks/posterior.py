"""The posterior attack under noise: labels, ranks and errors beside the figures to reach.

    OMP_NUM_THREADS=1 python benchmarks/posterior.py --data DIR          # a few minutes
    OMP_NUM_THREADS=1 python benchmarks/posterior.py --data DIR --victims 20

MNIST, one record a round, clip 1, noise of mu = clip / noise. 100 random victims of the test set,
2,000 other test records as candidates, and a lineup of 99 further ones for each victim. A LeNet
`after .1` or `after .03` has made 100 steps of plain SGD of that size on training records: the
further it is trained, the shorter the gradients of records that it knows, and the less they say.
Labels and first places are shares of victims; the error is the mean squared one over that of the
mean candidate. What the candidates would have sent is the same for every victim and every mu, and
is computed once a network: 500 MB of a LeNet.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from overhear.attacks import posterior
from overhear.attacks.posterior import Candidates, ranks, sent_by, weigh
from overhear.attacks.problem.observation import Observation, observe
from overhear.privacy.accounting.risk import risk_of_mu
from overhear.training.data.load import Dataset, load_dataset
from overhear.training.models.parameters import build_model, flatten, unflatten

MUS = (0.67, 2.02, 3.7, 6.7)
FLOORS = {  # labels, first of 100
    ("linear", 2.02): (0.40, 0.28),
    ("linear", 3.7): (0.80, 0.70),
    ("linear", 6.7): (0.95, 0.95),
    ("lenet after .03", 2.02): (0.56, None),
    ("lenet after .03", 3.7): (0.82, None),
    ("lenet after .03", 6.7): (0.96, None),
}
SIZE = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """Indices of test records: victims, candidates, and the others of lineups."""

    victims: Tensor
    candidates: Tensor
    others: Tensor


def draw(count: int, *, victims: int, seed: int) -> Drawn:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    ends = [victims, 2000, count - victims - 2000]
    return Drawn(**dict(zip(("victims", "candidates", "others"), order.split(ends), strict=True)))


def network(name: str, data: Dataset, *, seed: int) -> tuple[nn.Module, Tensor]:
    """The network and its parameters, after 100 steps where the name gives their size."""
    made = torch.Generator().manual_seed(seed)
    kind, _, size = name.partition(" after ")
    model = build_model(kind, input_shape=(1, 28, 28), classes=10, generator=made)
    flat = flatten(model).detach().clone()
    for _ in range(100 if size else 0):
        at = torch.randint(len(data.targets), (64,), generator=made)
        flat.requires_grad_()
        logits = functional_call(model, unflatten(model, flat), (data.inputs[at],))
        (slope,) = torch.autograd.grad(cross_entropy(logits, data.targets[at]), flat)
        flat = (flat - float(size) * slope).detach()
    return model, flat


@dataclass(kw_only=True, slots=True)
class Remembered:
    """`sent_by` of a network's candidates, which costs far more than all else, done once."""

    sent: dict[tuple[str, int], list[Tensor]] = field(default_factory=dict)
    name: str = ""

    def of(
        self, observation: Observation, model: nn.Module, candidates: Candidates
    ) -> Iterator[Tensor]:
        """As `sent_by`: the observations of a network differ in what was observed alone."""
        key = (self.name, len(candidates))
        if key not in self.sent:
            self.sent = {of: kept for of, kept in self.sent.items() if of[0] == self.name}
            self.sent[key] = list(sent_by(observation, model, candidates))
        return iter(self.sent[key])


REMEMBERED = Remembered()
posterior.sent_by = REMEMBERED.of  # type: ignore[assignment] # for every row of a network


def row(name: str, mu: float, data: Dataset, *, victims: int, seed: int) -> dict[str, str]:
    """One row of the table."""
    REMEMBERED.name = f"{name}, {victims} victims, seed {seed}"
    model, flat = network(name, data, seed=seed)
    drawn = draw(len(data.test_targets), victims=victims, seed=seed)
    noise = torch.Generator().manual_seed(seed + 1)
    public = _records(data, drawn.candidates)
    pixels = data.pixels(public.inputs).clamp(0, 1)
    right, first, error, blind, temperatures = 0, 0, 0.0, 0.0, list[float]()
    for victim in drawn.victims.tolist():
        x, y = data.test_inputs[victim : victim + 1], data.test_targets[victim : victim + 1]
        seen = observe(
            model, flat, inputs=x, targets=y, clip_norm=1.0, noise_std=1 / mu, generator=noise
        )
        found = weigh(seen, model, public, classes=10, generator=noise)
        right += int(found.labels.argmax()) == int(y)
        truth = data.pixels(x[0]).clamp(0, 1)
        error += float((data.pixels(found.picture.float()).clamp(0, 1) - truth).square().mean())
        blind += float((pixels.mean(dim=0) - truth).square().mean())
        temperatures.append(found.temperature)
        some = drawn.others[torch.randperm(len(drawn.others), generator=noise)[: SIZE - 1]]
        lineup = _records(data, torch.cat([torch.tensor([victim]), some]))
        first += ranks(seen, model, pool=lineup, victim=0, generator=noise)[SIZE] == 1
    floors = FLOORS.get((name, mu), (None, None))
    allowed = risk_of_mu(mu, prior_hit_rate=1 / SIZE).reconstruction
    spread = math.sqrt(allowed * (1 - allowed) / victims)
    return {
        "network": name,
        "mu": f"{mu:g}",
        "labels": _beside(right / victims, floors[0]),
        f"first of {SIZE}": _beside(first / victims, floors[1]),
        "proof allows": f"{allowed:.1%}",
        "within": "yes" if first / victims <= allowed + 3 * spread else "NO",
        "error over blind": f"{error / blind:.0%}",
        "temperature": f"{sum(temperatures) / victims:.1f}",
    }


def _records(data: Dataset, at: Tensor) -> Candidates:
    return Candidates(inputs=data.test_inputs[at], labels=data.test_targets[at])


def _beside(share: float, floor: float | None) -> str:
    if floor is None:
        return f"{share:.0%}"
    return f"{share:.0%} ({'reaches' if share >= floor else 'BELOW'} {floor:.0%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", required=True, help="folder that holds MNIST/raw")
    parser.add_argument("--victims", type=int, default=100)
    parser.add_argument(
        "--only", default="linear;lenet after .1;lenet after .03", help="networks, by semicolons"
    )
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    data = load_dataset("mnist", root=asked.data)
    head = False
    for name in asked.only.split(";"):
        for mu in MUS:
            found = row(name, mu, data, victims=asked.victims, seed=asked.seed)
            if not head:
                print("| " + " | ".join(found) + " |")
                print("| " + " | ".join("---" for _ in found) + " |")
                head = True
            print("| " + " | ".join(found.values()) + " |", flush=True)
    guessed = f"{1 / SIZE:.0%} of first places, 11% of labels"
    print(f"\nGuessing: {guessed}; n={asked.victims} victims a row.")


if __name__ == "__main__":
    main()
