"""The ground that both halves stand on: errors, places in the user's code, whose code it is, and tables."""
