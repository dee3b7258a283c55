"""The classes of messages in ONNX files."""

from __future__ import annotations

import gc
import weakref

from edge.runtime.onnx_proto import CLASSES, MESSAGES, ModelProto


def test_the_class_of_a_nodes_message_outlives_its_messages() -> None:
    node = weakref.ref(type(ModelProto().graph.node.add()))
    tensor = weakref.ref(type(ModelProto().graph.node.add().attribute.add().t.external_data.add()))
    gc.collect()
    assert node() is CLASSES["NodeProto"]
    assert tensor() is CLASSES["StringStringEntryProto"]
    assert CLASSES.keys() == MESSAGES.keys()
