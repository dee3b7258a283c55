package androidx.test.platform.app

import android.app.Instrumentation
import android.os.Bundle

/** See README.md in this folder. */
object InstrumentationRegistry {
    private var instance: Instrumentation? = null

    @JvmStatic
    fun getInstrumentation(): Instrumentation = instance ?: throw IllegalStateException("There is no instrumentation.")

    @JvmStatic
    fun registerInstance(given: Instrumentation?, @Suppress("unused") arguments: Bundle?) {
        instance = given
    }
}
