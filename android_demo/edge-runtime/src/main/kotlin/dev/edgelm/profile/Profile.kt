package dev.edgelm.profile

import kotlinx.serialization.ExperimentalSerializationApi
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonNamingStrategy

/** What repeated measurements of one thing came to, in milliseconds; the median lies in [lowMs], [highMs] with 95%. */
@Serializable
data class Stats(
    val count: Int,
    val p50Ms: Double,
    val p90Ms: Double,
    val p99Ms: Double,
    val minMs: Double,
    val jitterMs: Double,
    val lowMs: Double,
    val highMs: Double,
)

/** What the figures were measured on. */
@Serializable
data class Device(
    val name: String,
    val cpu: String,
    val cores: Int,
    val memoryBytes: Long?,
    val os: String,
    val runtime: String,
    val provider: String,
    val threads: Int,
)

/** Which bundle was measured. */
@Serializable
data class BundleInfo(
    val name: String,
    val sha256: String,
    val family: String,
    val kind: String,
    val input: String,
    val weights: String,
    val context: Int,
    val parameters: Long,
    val bytes: Long,
)

/** Time to first token of a prompt. */
@Serializable
data class FirstToken(val inputTokens: Int, val time: Stats)

/** Time per output token, after [context] tokens. */
@Serializable
data class Decode(val context: Int, val time: Stats, val tokensPerS: Double)

/** What a step of [size] tokens takes after [context] tokens. */
@Serializable
data class StepCost(val size: Int, val context: Int, val ms: Double, val lowMs: Double, val highMs: Double, val count: Int)

/** Bytes of the whole process: resident, and private ones, which the system cannot take back. */
@Serializable
data class MemoryUse(
    val peakBytes: Long?,
    val steadyBytes: Long?,
    val peakPrivateBytes: Long?,
    val steadyPrivateBytes: Long?,
    val capacity: Int,
)

/**
 * What a bundle takes on one device: docs/reference/profile-format.md says what the fields mean. `edge profile` shows
 * and compares such files, whichever host wrote them.
 */
@Serializable
data class Profile(
    val format: String = "edge-profile",
    val formatVersion: Int = 1,
    val producer: String,
    val created: String,
    val seconds: Double,
    val device: Device,
    val bundle: BundleInfo,
    val context: Int,
    val ttft: List<FirstToken> = emptyList(),
    val decode: List<Decode> = emptyList(),
    val curve: List<StepCost> = emptyList(),
    val curveInt8: List<StepCost> = emptyList(),
    val memory: MemoryUse? = null,
    val notes: List<String> = emptyList(),
) {
    /** The document's text. */
    fun toJson(): String = json.encodeToString(serializer(), this) + "\n"

    companion object {
        @OptIn(ExperimentalSerializationApi::class)
        private val json = Json {
            namingStrategy = JsonNamingStrategy.SnakeCase
            encodeDefaults = true
            ignoreUnknownKeys = true
            prettyPrint = true
            prettyPrintIndent = " "
        }

        /** A document that [toJson] wrote. */
        fun fromJson(text: String): Profile = json.decodeFromString(serializer(), text)
    }
}
