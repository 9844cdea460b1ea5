"""Reads jaxprs and compiled programs: walking, bytes, FLOPs, residuals, policies. Policies and inspection share it."""
