"""Graphs that other programs wrote, as `edge.export.graph.step` describes one: their files, what they take and give,
and the passes that bind their keys and values to buffers in place."""
