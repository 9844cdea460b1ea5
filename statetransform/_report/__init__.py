"""Tables, rows of HTML, and packages that are imported only where something is drawn."""
