"""A byte budget for any function. The files in the order in which a plan goes through them:

1. `calls` traces the function, and `differentiate` gives it a derivative that runs by a plan. `decisions` has one for
   each pattern of inputs that are differentiated.
2. `choose` takes the plain gradient step if it fits as compiled, else the first of the `candidates` that does.
   `measured` compiles them, and has `existing` read from the compiled plain step which values exist. `plan_cache`
   remembers what was found, and `meter` shows a bar.
3. `versions` has several versions of the function: planned by the values that exist, or by all, and with its loops
   opened (`opened`). For each, `gradient` traces the gradient step, and `build` makes a `graph` of it, nodes that need
   and make values, in a `joint` of both passes. What a node costs is in `cost`; bytes are those of one device
   (`devices`).
4. `solve` makes a curve of plans, sequences of nodes, from the plain one down. It begins with those that people write
   by hand (`checkpoints`, around blocks that `blocks` finds). `rematerialize` brings a plan within fewer bytes, and
   uses the memory that is left.
5. `simulate` counts the bytes that a plan has alive at each step, from when each value is alive (`liveness`).
6. `emit` makes programs of a plan, a forward pass and a backward pass, which `run` their nodes; `barriers` keep their
   order. What they do besides against compilers is listed in `tricks`: a value that is read in another order or shape
   alone is made in that (`forms`), and the gradients of max pooling (`pools`) and of the logits of labels (`picks`)
   by elementwise operations.
"""
