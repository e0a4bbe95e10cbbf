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

# Each public name, and the module that it is taken from; here by module.
_STANDS_IN = {
    name: module
    for module, names in {
        "accounts.account": "account",
        "accounts.result": "Account",
        "algorithms": "ALGORITHMS Algorithm Form bind",
        "data.load": "DATASET_NAMES Dataset load_dataset",
        "data.own_data": "dataset_of",
        "data.partition": "partition poisson_batch",
        "data.store": "Examples",
        "engine.engine": "Engine",
        "engine.randomness": "SecretRandomness",
        "engine.recording": "Recorded",
        "engine.setting": "Setting",
        "engine.transcript": "Message Transcript",
        "exposure.sensitivity": "JointSensitivity",
        "gradients.gradients": "PairGradients",
        "graphs.graph": "Graph GraphSequence Topology",
        "graphs.topologies": "GRAPH_NAMES build_graph",
        "models.evaluation": "Metrics auroc evaluate",
        "models.losses": "NetworkLoss",
        "models.parameters": "MODEL_NAMES build_model flatten unflatten validate_model",
        "models.tasks": "ClassWeights Task",
        "step.handles": "Agents Edges Server",
        "step.round": "Round",
        "step.values": "ALL Batch Cohort NUMBERS UndeclaredOperation",
        "tracing.round_trace": "RoundTrace",
        "tracing.trace": "AlgorithmTrace",
    }.items()
    for name in names.split()
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
