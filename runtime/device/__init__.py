"""Engines over a device with memory of its own, in which keys, values and logits stay."""
