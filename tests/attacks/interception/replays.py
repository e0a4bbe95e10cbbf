"""A small run to attack, with any algorithm; shared by the tests of estimates and scenarios."""

import torch
from torch import Tensor

from overhear.attacks.interception.replay import ReplayedRun
from overhear.attacks.problem.observation import Observation, sent_gradients
from overhear.training.algorithms import ALGORITHMS, Form, dpdl
from overhear.training.data.store import Examples
from overhear.training.engine.setting import Setting
from overhear.training.graphs.graph import Topology
from overhear.training.graphs.topologies import ring
from overhear.training.models.parameters import build_model
from overhear.training.models.tasks import ClassWeights

CLIP = 0.05


def trial(
    name: str,
    *,
    graph: Topology | None = None,
    form: Form = Form.REPAIRED,
    round: int = 3,
    noise_std: float = 0.0,
    adversary: str = "eavesdropper",
    together: int = 1,
    settings: object = None,
) -> ReplayedRun:
    """The third round of five on a ring of five, victim 1, in double precision."""
    graph = graph or ring(5)
    rng = torch.Generator().manual_seed(3)
    shards = [
        Examples(torch.rand(9, 1, 4, 4, generator=rng), torch.randint(3, (9,), generator=rng))
        for _ in range(graph.agents)
    ]
    known = ALGORITHMS[name]
    model = build_model("mlp", input_shape=(1, 4, 4), classes=3, generator=rng)
    if settings is None:
        settings = dpdl.Settings(alpha=0.7) if name == "dpdl" else known.settings()
    return ReplayedRun(
        setting=Setting(
            graph=graph,
            model=model,
            shards=shards,
            sampling_rate=0.5,
            device=torch.device("cpu"),
            dtype=torch.float64,
            task=ClassWeights(model, classes=3) if known.blocks == 2 else None,
        ),
        algorithm=name,
        form=form,
        settings=settings,
        learning_rate=0.2,
        clip_norm=CLIP if known.private else None,
        noise_std=noise_std,
        batch_size=4.5,
        snapshot=None,
        snapshot_round=0,
        round=round,
        rounds=5,
        victim=1,
        model_owner=0,
        records_per_agent=9.0,
        together=together,
        adversary=adversary,
    )


def planted(records: int = 1) -> Examples:
    """A batch of public records."""
    rng = torch.Generator().manual_seed(8)
    return Examples(torch.rand(records, 1, 4, 4, generator=rng), torch.arange(records) % 3)


def shown(one: ReplayedRun, seen: Observation, batch: Examples) -> Tensor:
    """(K, D) what the batch shows in every intercept without noise."""
    model = one.setting.model.double()
    return sent_gradients(seen, model, inputs=batch.inputs.double(), targets=batch.targets).detach()
