"""Messages as Flower's look to a mod, for tests on machines without flwr."""

from types import SimpleNamespace

import numpy as np


class Arrays(dict):
    """An array record: arrays by name."""

    def to_numpy_ndarrays(self):
        return list(self.values())


def content(arrays=None, metrics=None, configs=None):
    return SimpleNamespace(
        array_records={name: Arrays(of) for name, of in (arrays or {}).items()},
        metric_records=metrics or {},
        config_records=configs or {},
    )


def message(kind="train", round=1):
    return SimpleNamespace(
        content=content(
            {"arrays": {"w": np.zeros(3)}}, configs={"config": {"server-round": round}}
        ),
        metadata=SimpleNamespace(message_type=kind),
    )


def context(agent=0, agents=2):
    return SimpleNamespace(node_config={"partition-id": agent, "num-partitions": agents})


def reply(**held):
    return SimpleNamespace(content=content(**held), has_error=lambda: False)


MODEL = {"arrays": {"arrays": {"w": np.ones(3)}}}
