"""With one record less in a batch the vectors of the others stay: in every layout that serves."""

import pytest
import torch

from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.parameters import flatten
from tests.training.gradients.layout_cases import LAYOUTS, MIXING, SMALL, case


def changes(engine, models, inputs, targets, clip):
    """What a batch's sum loses with each record, and that record's own vector."""
    for left in range(len(targets)):
        kept = torch.arange(len(targets)) != left
        sums = [
            engine.clipped_sums(models, ([0], [0]), [(inputs[of], targets[of])], clip_norm=clip)[0]
            for of in (kept | True, kept, ~kept)
        ]
        yield sums[0] - sums[1], sums[2]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sum_loses_the_vector_of_the_record_that_leaves_it(layout, name):
    model, models, batches, _, _ = case(name, 0.4)
    inputs, targets = max(batches, key=lambda batch: len(batch[1]))
    engine = PairGradients(model, layout, dtype=torch.float64)
    for lost, own in changes(engine, models[:1], inputs, targets, 0.4):
        assert float((lost - own).norm()) <= 1e-12


@pytest.mark.parametrize("name", MIXING)
def test_so_it_does_where_a_network_mixes_the_records_of_a_batch(name):
    draw = torch.Generator().manual_seed(0)
    inputs = 20 * torch.randn(6, 6, generator=draw, dtype=torch.float64)
    model = MIXING[name]()
    engine = PairGradients(model, "auto", dtype=torch.float64)
    models = flatten(model)[None].double()
    for lost, own in changes(engine, models, inputs, torch.arange(6) % 3, 0.4):
        assert float((lost - own).norm()) <= 1e-12
    assert engine.layout == "vmap"  # where each record is alone in its call
