"""The bundle's own graphs, for onnxruntime's CPU provider."""
