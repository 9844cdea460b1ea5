"""Ratios against the hand-threaded JAX program, measured in one run, interleaved."""
