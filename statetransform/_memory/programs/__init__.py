"""Reads programs of JAX: walks over jaxprs, rewrites them, counts their bytes and operations. Knows no state."""
