"""What a trace has used: the attributes, names and items that it depends on, and whether they are still the same.

A `recorder` observes the function while it is traced; `visits` says how it looks into each kind of object, `classes`
what of the user's classes counts, and `callbacks` which objects the compiled program itself will call. What it has seen
are `edges`: `steps` from an object to a value, and the `conditions` that the value has to meet. `structure` keeps them,
follows them in a later call and says which one has changed; `generated` does so in compiled calls. `reuse` decides
whether the trace serves other calls at all, and `leaks` finds traced values that were left behind.
"""
