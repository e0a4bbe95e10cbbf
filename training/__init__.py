"""Training: a round's operations, the algorithms, what they cost, and the engine."""

from .accounts.account import account
from .accounts.result import Account
from .algorithms import ALGORITHMS, Algorithm, Form, bind
from .data.dataset import Examples
from .data.load import DATASET_NAMES, Dataset, load_dataset, partition, poisson_batch
from .data.own_data import dataset_of
from .engine.engine import Engine, Setting
from .engine.randomness import SecretRandomness
from .engine.recording import Recorded
from .engine.transcript import Message, Transcript
from .exposure.sensitivity import JointSensitivity
from .gradients.gradients import PairGradients
from .graphs.graph import Graph, GraphSequence, Topology
from .graphs.topologies import GRAPH_NAMES, build_graph
from .models.evaluation import Metrics, auroc, evaluate
from .models.losses import NetworkLoss
from .models.parameters import MODEL_NAMES, build_model, flatten, unflatten, validate_model
from .models.tasks import ClassWeights, Task
from .step.handles import Agents, Edges, Server
from .step.round import Round
from .step.values import ALL, Batch, Cohort, UndeclaredOperation
from .tracing.round_trace import RoundTrace
from .tracing.trace import AlgorithmTrace

__all__ = [
    "ALGORITHMS",
    "ALL",
    "DATASET_NAMES",
    "GRAPH_NAMES",
    "MODEL_NAMES",
    "Account",
    "Agents",
    "Algorithm",
    "AlgorithmTrace",
    "Batch",
    "ClassWeights",
    "Cohort",
    "Dataset",
    "Edges",
    "Engine",
    "Examples",
    "Form",
    "Graph",
    "GraphSequence",
    "JointSensitivity",
    "Message",
    "Metrics",
    "NetworkLoss",
    "PairGradients",
    "Recorded",
    "Round",
    "RoundTrace",
    "SecretRandomness",
    "Server",
    "Setting",
    "Task",
    "Topology",
    "Transcript",
    "UndeclaredOperation",
    "account",
    "auroc",
    "bind",
    "build_graph",
    "build_model",
    "dataset_of",
    "evaluate",
    "flatten",
    "load_dataset",
    "partition",
    "poisson_batch",
    "unflatten",
    "validate_model",
]
