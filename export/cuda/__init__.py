"""Graphs for GPUs with CUDA: their weights, and `edge export --target cuda`."""
