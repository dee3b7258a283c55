package androidx.test.runner.intent

import android.app.Instrumentation
import android.content.Intent

interface IntentMonitor

object IntentMonitorRegistry {
    @JvmStatic
    fun registerInstance(@Suppress("unused") given: IntentMonitor?) = Unit
}

interface IntentStubber {
    fun getActivityResultForIntent(intent: Intent): Instrumentation.ActivityResult?
}

object IntentStubberRegistry {
    @JvmStatic
    fun isLoaded() = false

    @JvmStatic
    fun getInstance(): IntentStubber = throw IllegalStateException("Nothing answers intents here.")
}
