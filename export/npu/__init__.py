"""Graphs for NPUs: fixed sizes, integer weights and activations, beside the plain ones in a bundle."""
