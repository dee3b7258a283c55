package androidx.test.runner.lifecycle

import android.app.Activity

enum class Stage { PRE_ON_CREATE, CREATED, STARTED, RESUMED, PAUSED, STOPPED, RESTARTED, DESTROYED }

enum class ApplicationStage { PRE_ON_CREATE, CREATED }

interface ActivityLifecycleMonitor {
    fun getLifecycleStageOf(activity: Activity): Stage?
}

interface ApplicationLifecycleMonitor

object ActivityLifecycleMonitorRegistry {
    private var instance: ActivityLifecycleMonitor? = null

    @JvmStatic
    fun getInstance(): ActivityLifecycleMonitor = instance!!

    @JvmStatic
    fun registerInstance(given: ActivityLifecycleMonitor?) {
        instance = given
    }
}

object ApplicationLifecycleMonitorRegistry {
    @JvmStatic
    fun registerInstance(@Suppress("unused") given: ApplicationLifecycleMonitor?) = Unit
}
