"""The check that ends an export: the written graphs next to the model in float32."""
