"""The model in float32, which exports are calibrated on and checked against: in numpy, or in Torch."""
