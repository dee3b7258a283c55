package dev.edgelm.app.screens

import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config

@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34])
class ScreensTest {
    @Test
    fun starts() {
        Robolectric.buildActivity(BundlesActivity::class.java).setup().get()
    }
}
