"""What users hold: states and collections of them; and the frames that hold their values during a trace.

`frame` has the rules of reading and writing, and `cell` is what frames ask for a value. A cell of another framework
implements `Cell`, and its adapter is in `_frameworks`. `adapters` says what classes of theirs are to this package,
`installing` and `reachable` when an adapter is installed, and `pytrees` takes pytrees apart in which their cells are.
"""
