"""JAX's transforms, made aware of mutable state."""

import sys
from typing import Any

from . import inspect, policies, transform
from ._adapters import attr, register_state_type
from ._loops.budget import MemoryBudget
from ._loops.plan import schedule
from ._state.errors import (
    BudgetError,
    RetraceWarning,
    StaleReadWarning,
    StateAxisError,
    StateStructureError,
    StateTraceError,
    StateTransformError,
)
from ._state.find import states
from ._state.state import Param, RandomState, State
from ._state.update import update, values
from ._state.values import Values
from ._version import __version__

__all__ = [
    "BudgetError",
    "MemoryBudget",
    "Param",
    "RandomState",
    "RetraceWarning",
    "StaleReadWarning",
    "State",
    "StateAxisError",
    "StateStructureError",
    "StateTraceError",
    "StateTransformError",
    "Values",
    "__version__",
    "attr",
    "inspect",
    "policies",
    "register_state_type",
    "schedule",
    "states",
    "transform",
    "update",
    "values",
]


def __getattr__(name: str) -> Any:
    hint = f" Write `transform.{name}` (`from statetransform import transform`)." if name in transform.__all__ else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{hint}", name=name, obj=sys.modules[__name__])


for _object in [globals()[name] for name in __all__]:  # public objects say where they are imported from
    if callable(_object):
        _object.__module__ = __name__
