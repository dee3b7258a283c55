"""Kinds of devices that graphs are written for: operators, weights and compilation of each."""
