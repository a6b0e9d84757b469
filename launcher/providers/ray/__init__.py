"""Ray nodes that Slipway starts, monitors and communicates with."""
