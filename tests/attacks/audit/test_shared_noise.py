import pytest

from overhear.attacks.audit.observed_rows import shares_noise
from overhear.privacy.adversary import EAVESDROPPER, FINAL_MODELS
from overhear.training.graphs.topologies import ring
from overhear.training.tracing.trace import trace
from tests.training import contract


@pytest.mark.parametrize(
    ("name", "who", "expected"),
    [
        ("dpdl", EAVESDROPPER, False),  # every cross-gradient has noise of its own
        ("cdp-dsgd", EAVESDROPPER, True),  # the server's noise is all agents'
        ("decor", EAVESDROPPER, True),  # noise that cancels between neighbours
        ("dp-dpsgd", FINAL_MODELS, False),  # the mixing of five is invertible
    ],
)
def test_scores_share_noise_where_a_source_is_in_several_views(name, who, expected):
    graph = ring(5)
    bound = contract.bound_to(name, graph)
    traces = trace(
        bound.init, bound.step, graph=graph, rounds=5, noise_multiplier=bound.noise_multiplier
    )
    adversaries = {who.name: dict.fromkeys(range(5), who)}
    assert shares_noise(traces, adversaries) is expected


def test_one_host_shares_with_nobody():
    graph = ring(5)
    bound = contract.bound_to("cdp-dsgd", graph)
    traces = trace(
        bound.init, bound.step, graph=graph, rounds=5, noise_multiplier=bound.noise_multiplier
    )
    assert not shares_noise(traces, {"eavesdropper": {0: EAVESDROPPER}})
