from ._checkpoint import checkpoint, remat
