"""What all rooms say to each other of a model: its checkpoint, its weights, its family."""
