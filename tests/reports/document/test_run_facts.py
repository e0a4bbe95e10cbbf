"""What a run was, in numbers; the rest is tested on real runs in test_report."""

from overhear.reports.document.summary import utility
from overhear.training.models.metrics import Metrics

LINES = [
    Metrics(
        round=number,
        accuracy=accuracy,
        consensus_accuracy=0.5,
        consensus_loss=1.0,
        consensus_distance=0.1,
    )
    for number, accuracy in ((0, (0.1, 0.3, 0.2)), (5, (0.9, 0.5, 0.6)))
]


def test_the_spread_over_agents_is_kept_for_every_evaluation():
    found = utility(LINES)
    assert found.rounds == [0, 5]
    assert found.agent_accuracy_min == [0.1, 0.5]
    assert found.agent_accuracy_median == [0.2, 0.6]
    assert found.agent_accuracy_max == [0.3, 0.9]
    assert found.agent_accuracy_last == [0.9, 0.5, 0.6]


def test_a_run_that_was_never_evaluated_has_no_utility():
    assert utility([]).agent_accuracy_last == []
    assert utility([]).rounds == []
