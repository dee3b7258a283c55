package dev.edgelm

import java.io.PrintWriter
import kotlin.system.exitProcess
import org.junit.platform.engine.discovery.DiscoverySelectors.selectClass
import org.junit.platform.engine.discovery.DiscoverySelectors.selectMethod
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder
import org.junit.platform.launcher.core.LauncherFactory
import org.junit.platform.launcher.listeners.SummaryGeneratingListener

/**
 * Runs the tests that are named, `class` or `class#method`, where there is no Maven: on an emulated processor. A test that
 * is skipped counts as one that failed.
 */
fun main(names: Array<String>) {
    val selectors = names.map { if ('#' in it) selectMethod(it) else selectClass(it) }
    val listener = SummaryGeneratingListener()
    LauncherFactory.create().execute(LauncherDiscoveryRequestBuilder.request().selectors(selectors).build(), listener)
    val summary = listener.summary
    summary.printFailuresTo(PrintWriter(System.out, true))
    println("${summary.testsSucceededCount} of ${summary.testsFoundCount} tests passed")
    val failed = summary.totalFailureCount > 0 || summary.testsSucceededCount < maxOf(1, summary.testsFoundCount)
    exitProcess(if (failed) 1 else 0)
}
