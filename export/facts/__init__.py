"""Facts of a model that all rooms share: its checkpoint, its weights, its family."""
