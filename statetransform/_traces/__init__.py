"""The one idea: a function is traced once; the states that it reads become inputs, those that it writes outputs.

`stage` makes one trace, in which a state becomes an input when it is first read. A `Trace` is what is kept of it.
`traces` decides whether one fits a call or another is made, by the structure (`_uses`) that the trace depends on.
`families` has what is kept, and how long; `log` is behind `explain_retrace`. `arguments` hides static values and
objects, `wrapper` makes the decorated function, `outcome` is what a call leaves. `lift` has what transforms are made
of: enter, call, leave. Nothing here knows a transform.
"""
