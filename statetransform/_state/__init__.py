"""What users hold: states, collections of them, errors; and the frames that hold their values during a trace."""
