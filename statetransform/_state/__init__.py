"""What users hold: states, collections of them, errors; and the frames that hold their values during a trace.

`frame` has the rules of reading and writing. `cell` is what frames ask for a value, and what another framework has to
implement; `adapters` is the door to these.
"""
