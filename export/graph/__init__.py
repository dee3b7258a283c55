"""Models as ONNX graphs: the mathematics in modules, which families are made of."""
