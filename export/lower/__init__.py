"""What models are computed with: a target's operators for the mathematics of `edge.export.graph`."""
