"""Training: a round's operations, the algorithms, what they cost, and the engine.

Each name is imported when it is first asked for: a run file is read, and refused, without torch.
"""

TYPE_CHECKING = False  # what type checkers see; Python goes by `_STANDS_IN`
if TYPE_CHECKING:
    from ..privacy.errors import UndeclaredOperation
    from .accounts.account import account
    from .accounts.result import Account
    from .algorithms import ALGORITHMS, Algorithm, Form, bind
    from .data.load import DATASET_NAMES, Dataset, load_dataset
    from .data.own_data import dataset_of
    from .data.partition import partition, poisson_batch
    from .data.store import Examples
    from .engine.engine import Engine
    from .engine.randomness import SecretRandomness
    from .engine.recording import Recorded
    from .engine.setting import Setting
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
    from .step.values import ALL, NUMBERS, Batch, Cohort
    from .tracing.round_trace import RoundTrace
    from .tracing.trace import AlgorithmTrace

__all__ = [
    "ALGORITHMS",
    "ALL",
    "DATASET_NAMES",
    "GRAPH_NAMES",
    "MODEL_NAMES",
    "NUMBERS",
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

# Each public name, and the module that it is taken from.
_STANDS_IN = {
    "ALGORITHMS": "algorithms",
    "ALL": "step.values",
    "NUMBERS": "step.values",
    "DATASET_NAMES": "data.load",
    "GRAPH_NAMES": "graphs.topologies",
    "MODEL_NAMES": "models.parameters",
    "Account": "accounts.result",
    "Agents": "step.handles",
    "Algorithm": "algorithms",
    "AlgorithmTrace": "tracing.trace",
    "Batch": "step.values",
    "ClassWeights": "models.tasks",
    "Cohort": "step.values",
    "Dataset": "data.load",
    "Edges": "step.handles",
    "Engine": "engine.engine",
    "Examples": "data.store",
    "Form": "algorithms",
    "Graph": "graphs.graph",
    "GraphSequence": "graphs.graph",
    "JointSensitivity": "exposure.sensitivity",
    "Message": "engine.transcript",
    "Metrics": "models.evaluation",
    "NetworkLoss": "models.losses",
    "PairGradients": "gradients.gradients",
    "Recorded": "engine.recording",
    "Round": "step.round",
    "RoundTrace": "tracing.round_trace",
    "SecretRandomness": "engine.randomness",
    "Server": "step.handles",
    "Setting": "engine.setting",
    "Task": "models.tasks",
    "Topology": "graphs.graph",
    "Transcript": "engine.transcript",
    "UndeclaredOperation": "step.values",
    "account": "accounts.account",
    "auroc": "models.evaluation",
    "bind": "algorithms",
    "build_graph": "graphs.topologies",
    "build_model": "models.parameters",
    "dataset_of": "data.own_data",
    "evaluate": "models.evaluation",
    "flatten": "models.parameters",
    "load_dataset": "data.load",
    "partition": "data.partition",
    "poisson_batch": "data.partition",
    "unflatten": "models.parameters",
    "validate_model": "models.parameters",
}

if not TYPE_CHECKING:  # to a type checker an unknown name is an error

    def __getattr__(name):
        """A public name, imported when it is first asked for."""
        from importlib import import_module

        if name not in _STANDS_IN:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f".{_STANDS_IN[name]}", __name__), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """The public names, whether or not they were imported already."""
    return sorted({*globals(), *__all__})
