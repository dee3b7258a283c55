package dev.edgelm.engine

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

class OrtTest {
    @Test
    fun `experts that an older onnxruntime does not know are told in a sentence`() {
        val said = "Error code - ORT_INVALID_GRAPH - message: Unrecognized attribute: fc2_expert_weight_bits for operator QMoE"
        val reason = Ort.reason(said, "1.29.0")
        assertTrue("onnxruntime 1.29.0 does not compute experts" in reason && "1.31 or later" in reason) { reason }
        for (other in listOf("no such file", "QMoE: the weights have other sizes")) assertEquals(other, Ort.reason(other, "1.29.0"))
    }
}
