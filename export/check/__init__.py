"""The check at the end of an export: the written graphs compared with the model in float32."""
