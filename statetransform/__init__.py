from . import transform
from ._core.state import State, Param, RandomState
from ._core.values import Values
from ._core.find import states
