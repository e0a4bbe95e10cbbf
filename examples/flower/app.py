"""Three clients of Flower learn digits; every reply has its line before it leaves.

python examples/flower/app.py ledger      # pip install "flwr[simulation]>=1.41,<2"
overhear account ledger
"""

import sys
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from sklearn.datasets import load_digits

from overhear.adapters.flower import record

CLIENTS, ROUNDS, CLIP, NOISE = 3, 2, 1.0, 2.0
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "ledger").absolute()


def noise(msg: Message, ctxt: Context, call_next):
    """Gaussian noise on what the mods inside have clipped."""
    reply = call_next(msg, ctxt)
    chance = np.random.default_rng()  # from the system's entropy
    for name, arrays in reply.content.array_records.items():
        noisy = {
            key: Array(of.numpy() + chance.normal(0.0, NOISE, of.numpy().shape).astype(np.float32))
            for key, of in arrays.items()
        }
        reply.content[name] = ArrayRecord(noisy)
    return reply


client = ClientApp(
    mods=[
        record(FOLDER, unit="client", clip=CLIP, noise_std=NOISE, allow=["metrics.num-examples"]),
        noise,
        fixedclipping_mod,
    ]
)


@client.train()
def train(msg: Message, ctxt: Context) -> Message:
    """Ten steps of logistic regression on a third of the digits."""
    part = int(ctxt.node_config["partition-id"])
    digits = load_digits()
    x, y = (digits.data[part::CLIENTS] / 16).astype(np.float32), digits.target[part::CLIENTS]
    weights = msg.content["arrays"]["weights"].numpy().copy()
    for _ in range(10):
        logits = x @ weights
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        weights -= 0.5 * x.T @ (p - np.eye(10, dtype=np.float32)[y]) / len(x)
    return Message(
        RecordDict(
            {
                "arrays": ArrayRecord({"weights": Array(weights.astype(np.float32))}),
                # The same for everybody, so it tells nothing; the true number would.
                "metrics": MetricRecord({"num-examples": 1, **EXTRA}),
            }
        ),
        reply_to=msg,
    )


# `python app.py FOLDER --leak` also sends the loss, which the first mod refuses.
EXTRA = {"train_loss": 0.5} if "--leak" in sys.argv else {}
server = ServerApp()


@server.main()
def main(grid: Grid, _: Context) -> None:
    """Two rounds of federated averaging."""
    strategy = DifferentialPrivacyClientSideFixedClipping(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS),
        noise_multiplier=0.0,
        clipping_norm=CLIP,
        num_sampled_clients=CLIENTS,
    )
    start = ArrayRecord({"weights": Array(np.zeros((64, 10), dtype=np.float32))})
    strategy.start(grid=grid, initial_arrays=start, num_rounds=ROUNDS)


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
