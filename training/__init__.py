"""Training: a round's operations, the algorithms, what they cost, and the engine.

Each name is imported when it is first asked for: a run file is read, and refused, without torch.
"""

TYPE_CHECKING = False  # what type checkers see, and `lazy_names` reads
if TYPE_CHECKING:
    from ..privacy.errors import UndeclaredOperation as UndeclaredOperation
    from .accounts.account import account as account
    from .accounts.result import Account as Account
    from .algorithms import ALGORITHMS as ALGORITHMS
    from .algorithms import Algorithm as Algorithm
    from .algorithms import Form as Form
    from .algorithms import bind as bind
    from .data.load import DATASET_NAMES as DATASET_NAMES
    from .data.load import Dataset as Dataset
    from .data.load import load_dataset as load_dataset
    from .data.own_data import dataset_of as dataset_of
    from .data.partition import partition as partition
    from .data.partition import poisson_batch as poisson_batch
    from .data.store import Examples as Examples
    from .engine.engine import Engine as Engine
    from .engine.randomness import SecretRandomness as SecretRandomness
    from .engine.recording import Recorded as Recorded
    from .engine.setting import Setting as Setting
    from .engine.transcript import Message as Message
    from .engine.transcript import Transcript as Transcript
    from .exposure.sensitivity import JointSensitivity as JointSensitivity
    from .gradients.gradients import PairGradients as PairGradients
    from .graphs.graph import Graph as Graph
    from .graphs.graph import GraphSequence as GraphSequence
    from .graphs.graph import Topology as Topology
    from .graphs.topologies import GRAPH_NAMES as GRAPH_NAMES
    from .graphs.topologies import build_graph as build_graph
    from .models.evaluation import auroc as auroc
    from .models.evaluation import evaluate as evaluate
    from .models.losses import NetworkLoss as NetworkLoss
    from .models.metrics import Metrics as Metrics
    from .models.parameters import MODEL_NAMES as MODEL_NAMES
    from .models.parameters import build_model as build_model
    from .models.parameters import flatten as flatten
    from .models.parameters import unflatten as unflatten
    from .models.parameters import validate_model as validate_model
    from .models.tasks import ClassWeights as ClassWeights
    from .models.tasks import Task as Task
    from .step.handles import Agents as Agents
    from .step.handles import Edges as Edges
    from .step.handles import Server as Server
    from .step.round import Round as Round
    from .step.values import ALL as ALL
    from .step.values import NUMBERS as NUMBERS
    from .step.values import Batch as Batch
    from .step.values import Cohort as Cohort
    from .tracing.round_trace import RoundTrace as RoundTrace
    from .tracing.trace import AlgorithmTrace as AlgorithmTrace

if not TYPE_CHECKING:  # to a type checker an unknown name is an error
    from .. import lazy_names

    __all__, __getattr__, __dir__ = lazy_names(__name__)
