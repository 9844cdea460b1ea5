"""What a trace has used: the attributes, names and items that it depends on, and whether they are still the same.

A `recorder` observes the function while it is traced, and `visits` says how it looks into each kind of object. What it
has seen are `edges`. `structure` keeps them, follows them in a later call and says which one has changed; `generated`
does so in compiled calls. `reuse` decides whether the trace serves other calls at all, and `leaks` finds traced values
that were left behind.
"""
