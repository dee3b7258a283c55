package dev.edgelm.engine

import ai.onnxruntime.NodeInfo
import ai.onnxruntime.OrtSession
import ai.onnxruntime.TensorInfo
import dev.edgelm.BundleException
import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.Manifest

/**
 * Compare the sizes that a manifest states with those of a graph, before memory is taken for them.
 *
 * @throws BundleException they differ.
 */
internal fun checkFits(bundle: Bundle, session: OrtSession, role: String) {
    for ((name, node) in session.inputInfo + session.outputInfo) checkFits(bundle, name, node, role)
}

private fun checkFits(bundle: Bundle, name: String, node: NodeInfo, role: String) {
    val shape = (node.info as? TensorInfo)?.shape ?: return
    for ((place, size) in stated(bundle.manifest, name)) {
        if (place < shape.size && shape[place] == size.toLong()) continue
        throw BundleException(
            "${bundle.root}: ${name.take(60)} of the graph $role has the shape ${shape.joinToString().take(100)}, and the " +
                "manifest states $size for its dimension ${place + 1}; export the model again.",
        )
    }
}

/** What a manifest states of an input or output: sizes by the places of dimensions; the others are the host's. */
private fun stated(manifest: Manifest, name: String): Map<Int, Int> {
    val parts = name.split('.')
    if (name == "logits") return mapOf(2 to manifest.dims.vocabSize)
    val layout = when (parts[0]) {
        "past", "present" -> manifest.kv
        "cross" -> manifest.cross
        else -> null
    }
    if (layout == null || parts.size != 3 || parts[2] != "key" && parts[2] != "value") return emptyMap()
    val layer = parts[1].toIntOrNull()?.let(layout.layers::getOrNull) ?: return mapOf(0 to NONE)
    val turned = parts[0] == "cross" && parts[2] == "value" && manifest.encoder?.valuesTransposed == true
    return mapOf(1 to layer.heads, (if (turned) 2 else 3) to layer.headDim)
}

private const val NONE = -1 // the size of a layer that the manifest does not have
