"""From a checkpoint to a bundle, stage after stage."""
