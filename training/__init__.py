"""Training: a round's operations, the algorithms, their trace, and the engine."""

from .algorithms import ALGORITHMS, Algorithm, Form, bind
from .data.dataset import Examples
from .data.load import DATASET_NAMES, Dataset, load_dataset, partition, poisson_batch
from .engine.engine import Engine, Setting
from .engine.randomness import SecretRandomness
from .engine.recording import Recorded
from .engine.transcript import Message, Transcript
from .exposure.dense_rounds import streamed_view
from .exposure.guarantees import calibrated_multiplier, guarantee, run_epsilon
from .exposure.joint_sensitivities import (
    JointSensitivity,
    joint_sensitivities,
    joint_sensitivities_by_victim,
)
from .exposure.whole_run import whole_run_joint_sensitivities
from .gradients.gradients import PairGradients
from .graphs.graph import Graph, GraphSequence, Topology
from .graphs.topologies import GRAPH_NAMES, build_graph
from .models.evaluation import Metrics, auroc, evaluate
from .models.parameters import MODEL_NAMES, build_model, flatten, unflatten, validate_model
from .models.tasks import ClassWeights, Task
from .step.round import Round
from .step.values import Agents, Batch, Edges, Server, UndeclaredOperation
from .tracing.round_trace import RoundTrace
from .tracing.trace import AlgorithmTrace, trace

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
    "Form",
    "Graph",
    "GraphSequence",
    "JointSensitivity",
    "Message",
    "Metrics",
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
    "auroc",
    "bind",
    "build_graph",
    "build_model",
    "calibrated_multiplier",
    "evaluate",
    "flatten",
    "guarantee",
    "joint_sensitivities",
    "joint_sensitivities_by_victim",
    "load_dataset",
    "partition",
    "poisson_batch",
    "run_epsilon",
    "streamed_view",
    "trace",
    "unflatten",
    "validate_model",
    "whole_run_joint_sensitivities",
]
