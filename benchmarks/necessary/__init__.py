"""What is proved about plans: no plan can do with fewer bytes, or with less work within some bytes.

It judges the planner.
"""
