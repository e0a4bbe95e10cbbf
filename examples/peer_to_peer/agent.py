"""Decentralized DP-SGD over sockets: two agents or more, each a process with records of its own.

    python agent.py AGENT PORT,PORT,... LEDGER_FOLDER

Each round an agent clips the gradients of a Poisson batch, adds noise, takes a step and sends the
model to all others; the next round starts from the mean of what was sent. overhear has four
lines: `record`, `ledger.batch`, `ledger.noise`, `ledger.release`. Gossip and gradients are the
example's own.
"""

from __future__ import annotations

import socket
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from overhear.runs.recorder.record import record

D, RECORDS, ROUNDS = 64, 200, 8
CLIP, NOISE_STD, RATE, STEP = 1.0, 1.5, 0.2, 0.05
START = torch.zeros(D, dtype=torch.float64)


def data(agent: int) -> tuple[Tensor, Tensor]:
    """An agent's records: a linear model, a few of them far off, whose gradients are clipped."""
    chance = np.random.default_rng(agent)
    x = chance.normal(size=(RECORDS, D))
    y = x @ np.linspace(-1, 1, D) + chance.normal(size=RECORDS)
    return torch.from_numpy(x), torch.from_numpy(y)


def gradients(point: Tensor, positions: np.ndarray, agent: int) -> Tensor:
    """(B, D) of the squared error, scaled so that many are longer than 1."""
    x, y = (of[torch.from_numpy(positions)] for of in data(agent))
    return (x @ point - y)[:, None] * x / (2 * D**0.5)


def clipped_sum(each: Tensor) -> Tensor:
    """Rows no longer than the clip norm, added up."""
    return (each * (CLIP / each.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(dim=0)


def mixed(sent: list[Tensor]) -> Tensor:
    """Where the next round starts: the mean of all models, in the order of the agents."""
    return torch.stack(sent).mean(dim=0)


def train(
    agent: int,
    agents: int,
    folder: Path,
    exchange: Callable[[Tensor], list[Tensor]],
    *,
    rounds: int = ROUNDS,
) -> None:
    """Train as one of the agents; `exchange` sends a model and returns everybody's."""
    model = START
    with record(
        folder / f"agent-{agent}.jsonl",
        agent=agent,
        agents=agents,
        clip=CLIP,
        rate=RATE,
        rounds=rounds,
        scale=-STEP,
        noise=NOISE_STD,
        keep="all",
    ) as ledger:
        for t in range(1, rounds + 1):
            batch = ledger.batch(RECORDS)
            g = clipped_sum(gradients(model, batch, agent))
            g = g + ledger.noise(D, NOISE_STD, like=g)
            value = model - STEP * g
            others = [k for k in range(agents) if k != agent]
            ledger.release(
                t, kind="model", to=others, noise=NOISE_STD,
                value=value, batch=batch, point=model, known=model,
            )  # fmt: skip
            model = mixed(exchange(value))


def over_sockets(agent: int, ports: list[int]) -> Callable[[Tensor], list[Tensor]]:
    """An exchange with all other agents over loopback; agent i listens for those behind it."""
    peers: dict[int, socket.socket] = {}
    with socket.create_server(("127.0.0.1", ports[agent])) as server:
        for other in range(agent):
            peers[other] = _connected(ports[other])
            peers[other].sendall(bytes([agent]))
        for _ in range(agent + 1, len(ports)):
            link, _ = server.accept()
            peers[link.recv(1)[0]] = link

    def exchange(value: Tensor) -> list[Tensor]:
        for link in peers.values():
            link.sendall(value.numpy().tobytes())
        found = {agent: value}
        for other, link in peers.items():
            found[other] = torch.from_numpy(np.frombuffer(_received(link, 8 * D)).copy())
        return [found[k] for k in range(len(ports))]

    return exchange


def _connected(port: int) -> socket.socket:
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.1)  # it has not begun
    raise SystemExit(f"no one listens on port {port}; start all agents")


def _received(link: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = link.recv(size - len(parts))
        if not part:
            raise SystemExit("a peer ended; its log says up to which round it released")
        parts += part
    return parts


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="transcripts of all rounds")  # they are meant to be
    me, every = int(sys.argv[1]), [int(port) for port in sys.argv[2].split(",")]
    train(me, len(every), Path(sys.argv[3]), over_sockets(me, every))
