"""A byte budget for any function. The files in the order in which a plan goes through them:

1. `differentiate` gives the function a derivative that runs by a plan. It asks `measure` which one, for each pattern of
   inputs that are differentiated.
2. `measure` compiles the plain gradient step, asks for plans, compiles these, and corrects them. `plan_cache` remembers
   what was found, and `meter` shows a bar.
3. `versions` has the function in several forms: as it is, and with its loops opened (`loops`). For each form, `joint`
   traces the gradient step and makes a `graph` of it: nodes that need and make values. What a node costs is in `cost`;
   bytes are those of one device (`devices`).
4. `solve` looks for the cheapest plan, a sequence of nodes, within a number of bytes. It begins with the plans that
   people write by hand (`checkpoints`, around blocks that `blocks` finds). `rematerialize` brings a plan into a budget,
   and uses the memory that is left.
5. `simulate` counts the bytes that a plan has alive at each step, from when each value is alive (`liveness`).
6. `emit` makes programs of a plan, a forward pass and a backward pass; `barriers` keep their order.
"""
