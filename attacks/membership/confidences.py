"""How sure models are of the labels of records: the statistic that membership attacks compare.

    phi(p) = log(p / (1 - p)),  p the probability that a model gives to a record's own label

Source: N. Carlini et al., "Membership Inference Attacks From First Principles", IEEE S&P 2022,
arXiv:2112.03570, section VI-A. It is computed from logits, where p near 1 would lose all digits.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...training.data.store import Examples
from ...training.models.parameters import unflatten
from .pool import Pool

AVERAGE, OWNER = "average", "owner"
MOST_AGENTS = 32  # whose models are attacked with everybody's records, each by itself
_LARGEST = 50.0  # of a statistic: that of a probability within 2e-22 of 1
_BATCH = 2048

Array = NDArray[np.float64]


@torch.no_grad()
def confidences(model: nn.Module, flat: Tensor, records: Examples) -> Array:
    """The statistic of every record under one model.

    Args:
        model: the network; its own parameters are not used.
        flat: (D,) parameters; longer ones go on with dual variables, which no record asks for.
        records: (B) inputs and targets.

    Returns:
        (B,), within [-50, 50]; 0 where a model that diverged says nothing.
    """
    found = []
    parameters = {name: value.to(flat.device) for name, value in unflatten(model, flat).items()}
    for x, y in zip(records.inputs.split(_BATCH), records.targets.split(_BATCH), strict=True):
        inputs = x.to(flat.device, flat.dtype if x.is_floating_point() else None)
        targets = y.to(flat.device)
        logits = torch.func.functional_call(model, parameters, (inputs,)).double()
        own = logits.gather(1, targets[:, None])[:, 0]
        others = logits.scatter(1, targets[:, None], -torch.inf).logsumexp(dim=1)
        phi = (own - others).nan_to_num(nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
        found.append(phi.clamp(-_LARGEST, _LARGEST).cpu().numpy())
    return np.concatenate(found) if found else np.zeros(0)


def confidences_by_model(model: nn.Module, models: Tensor, pool: Pool) -> dict[str, Array]:
    """The statistic of the records at stake under the models that are attacked.

    Args:
        model: the network.
        models: (A, D) that a run ends with.

    Returns:
        (C,) each: of the `average` model; of each record's `owner`; and of every agent, where they
        are at most `MOST_AGENTS`.
    """
    agents = len(models)
    found = {AVERAGE: confidences(model, models.mean(dim=0), pool.records)}
    owner = np.zeros(len(pool.owners))
    for agent, flat in enumerate(models):
        mine = np.flatnonzero(pool.owners == agent)
        if agents > MOST_AGENTS:
            rows = torch.from_numpy(mine)
            own = Examples(pool.records.inputs[rows], pool.records.targets[rows])
            owner[mine] = confidences(model, flat, own)
        else:
            every = confidences(model, flat, pool.records)
            owner[mine] = every[mine]
            found[f"agent {agent}"] = every
    return found | {OWNER: owner}
