"""What users hold: states and collections of them; and the frames that hold their values during a trace.

`frame` has the rules of reading and writing, and `cell` is what frames ask for a value. `adapters` is all that the rest
of the package asks of other frameworks. A cell of theirs implements `Cell`; the adapters are in `_frameworks`.
"""
