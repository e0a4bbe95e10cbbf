"""Training: a round's operations, the algorithms, their trace, and the engine."""

from .accounting import calibrated_multiplier, guarantee, run_epsilon
from .algorithms import ALGORITHMS, Algorithm, Form, bind
from .all_rounds import all_rounds_exposures, streamed_view
from .auroc import auroc
from .data import DATASET_NAMES, Dataset, load_dataset, partition, poisson_batch
from .engine import Engine, Setting
from .evaluation import Metrics, evaluate
from .exposure import Exposure, exposures, exposures_by_victim
from .gradients import PairGradients
from .graph import Graph, GraphSequence, Topology
from .models import MODEL_NAMES, build_model, flatten, unflatten, validate_model
from .randomness import SecretRandomness
from .round import Agents, Batch, Edges, Round, Server, UndeclaredOperation
from .round_trace import RoundTrace
from .tasks import ClassWeights, Task
from .tensor_round import Examples, Sources
from .topologies import GRAPH_NAMES, build_graph
from .trace import AlgorithmTrace, trace
from .transcript import Message, Transcript

__all__ = [
    "ALGORITHMS",
    "DATASET_NAMES",
    "GRAPH_NAMES",
    "MODEL_NAMES",
    "Agents",
    "Algorithm",
    "AlgorithmTrace",
    "Batch",
    "ClassWeights",
    "Dataset",
    "Edges",
    "Engine",
    "Examples",
    "Exposure",
    "Form",
    "Graph",
    "GraphSequence",
    "Message",
    "Metrics",
    "PairGradients",
    "Round",
    "RoundTrace",
    "SecretRandomness",
    "Server",
    "Setting",
    "Sources",
    "Task",
    "Topology",
    "Transcript",
    "UndeclaredOperation",
    "all_rounds_exposures",
    "auroc",
    "bind",
    "build_graph",
    "build_model",
    "calibrated_multiplier",
    "evaluate",
    "exposures",
    "exposures_by_victim",
    "flatten",
    "guarantee",
    "load_dataset",
    "partition",
    "poisson_batch",
    "run_epsilon",
    "streamed_view",
    "trace",
    "unflatten",
    "validate_model",
]
