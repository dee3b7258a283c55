"""The bundle's own graphs, which onnxruntime's CPU provider runs."""
