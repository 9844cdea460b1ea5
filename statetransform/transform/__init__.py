from ._checkpoint import checkpoint, remat
from ._jit import Jitted
