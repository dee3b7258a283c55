package dev.edgelm

import dev.edgelm.bundle.Bundle
import dev.edgelm.bundle.Manifest
import dev.edgelm.bundle.TOKENIZER
import dev.edgelm.engine.Engine
import dev.edgelm.memory.Plan
import dev.edgelm.skip.SkipPolicy
import dev.edgelm.speculate.Speculation
import dev.edgelm.text.Tokenizer
import java.io.File
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.FlowCollector
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.flowOn

/** What every kind of model is made of, once its bundle was opened. */
internal class Loaded private constructor(
    val bundle: Bundle, val plan: Plan, val engine: Engine, val tokenizer: Tokenizer,
) {
    companion object {
        /**
         * Open a bundle: check its files, plan its memory, load it. [refused] says why a bundle is not of the wanted kind,
         * before anything is read; null: it is.
         */
        fun open(
            path: File,
            options: EdgeOptions,
            planned: (Manifest, EdgeOptions) -> Plan = Plan::make,
            refused: (Manifest) -> String?,
        ): Loaded {
            val opened = Bundle.open(path)
            val manifest = opened.manifest
            refused(manifest)?.let { throw BundleException("${manifest.name} $it") }
            options.context?.let {
                if (it !in 1..manifest.context) {
                    throw InputException("The context must be between 1 and ${manifest.context} tokens, not $it.")
                }
            }
            Speculation.chosen(options.speculate, manifest)
            if (manifest.encoder != null && options.skip != SkipPolicy.OFF) {
                throw InputException("${manifest.name} has an encoder, and only models without one skip layers here; leave skip out.")
            }
            opened.checkSizes()
            val policies = SkipPolicy.maker(options.skip, opened)
            val plan = planned(manifest, options)
            opened.checkFiles(options.cacheDir)
            val tokenizer = Tokenizer.read(opened.file(TOKENIZER))
            val bundle = opened.endingAfterAnswers(tokenizer)
            val role = if (policies != null) Engine.SKIP else if (plan.int8) Engine.KV8 else Engine.DECODER
            val engine = Engine(bundle, role, plan.context, options.threads, plan.prefill, policies)
            return Loaded(bundle, plan, engine, tokenizer)
        }
    }
}

private const val BUFFERED = 4 // pieces or segments that may wait for a slow collector, which then slows the model down

/**
 * A stream that is made on [dispatcher], up to [ahead] before they are received. [answer] calls what it is given
 * before every step: it throws once the collector is cancelled.
 */
internal fun <T> streaming(
    dispatcher: CoroutineDispatcher,
    ahead: Int = BUFFERED,
    answer: suspend FlowCollector<T>.(goOn: () -> Unit) -> Unit,
): Flow<T> = flow {
    val job = currentCoroutineContext()
    answer { job.ensureActive() }
}.buffer(ahead).flowOn(dispatcher)
