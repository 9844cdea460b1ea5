"""A byte budget for any function: graph, cost model, simulator, solvers and emission, each in its own file."""
