package dev.edgelm.app.screens

import android.app.Activity
import android.content.Context
import android.graphics.Bitmap
import android.graphics.Canvas
import android.os.Looper
import android.view.View
import android.widget.Button
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.ListView
import android.widget.TextView
import dev.edgelm.app.EdgeApp
import dev.edgelm.app.FakeBundle
import dev.edgelm.app.FakeModel
import dev.edgelm.app.FolderSource
import dev.edgelm.app.R
import dev.edgelm.app.model.LoadMarker
import dev.edgelm.app.model.Pressure
import java.io.File
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.Dispatchers
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.android.controller.ActivityController
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode

/** The app with models that a test makes. */
class TestApp : EdgeApp() {
    var model = FakeModel()
    override val io = Dispatchers.Unconfined

    override fun load(bundle: File) = model
}

/** The screens as Android draws them; pictures of them are in target/screens. */
@RunWith(RobolectricTestRunner::class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@Config(sdk = [34], application = TestApp::class, qualifiers = "w360dp-h740dp-xhdpi")
class ScreensTest {
    private val app get() = RuntimeEnvironment.getApplication() as TestApp
    private val folder get() = app.shelf.folder(NAME)

    private fun <T : Activity> start(screen: Class<T>): ActivityController<T> {
        val intent = ScreenActivity.intent(app as Context, screen, NAME)
        return Robolectric.buildActivity(screen, intent).setup().also { idle() }
    }

    private fun idle() = shadowOf(Looper.getMainLooper()).idle()

    private fun Activity.words(id: Int) = findViewById<TextView>(id).text.toString()

    private fun Activity.press(id: Int) {
        findViewById<View>(id).performClick()
        idle()
    }

    private fun Activity.say(words: String) {
        findViewById<EditText>(R.id.input).setText(words)
        press(R.id.send)
    }

    private fun Activity.turns(): List<String> = findViewById<ListView>(R.id.turns).let { list ->
        List(list.count) { (list.adapter.getView(it, null, list).findViewById<TextView>(R.id.words)).text.toString() }
    }

    private fun Activity.picture(name: String) {
        idle()
        val view = window.decorView
        val picture = Bitmap.createBitmap(view.width, view.height, Bitmap.Config.ARGB_8888)
        view.draw(Canvas(picture))
        val file = File("target/screens/$name.png").apply { parentFile!!.mkdirs() }
        file.outputStream().use { picture.compress(Bitmap.CompressFormat.PNG, 100, it) }
        val colors = (0 until picture.width step 7).flatMap { x -> (0 until picture.height step 7).map { y -> picture.getPixel(x, y) } }
        assertTrue("$name is empty", colors.distinct().size > 5)
    }

    private fun bundles(): BundlesActivity = Robolectric.buildActivity(BundlesActivity::class.java).setup().also { idle() }.get()

    private fun shelf(): BundlesActivity {
        FakeBundle.write(folder)
        FakeBundle.write(app.shelf.folder("opus-mt-en-de.edge"), "opus-mt-en-de", "encoder-decoder")
        app.shelf.folder("broken.edge").mkdirs()
        LoadMarker(File(app.filesDir, "loading")).begin(NAME)
        return bundles()
    }

    @Test
    fun `bundles are cards with what can be done`() {
        val screen = shelf()
        val cards = screen.findViewById<LinearLayout>(R.id.cards)
        assertEquals(3, cards.childCount)
        assertEquals(listOf(0, 0, 2), List(3) { cards.getChildAt(it).findViewById<LinearLayout>(R.id.actions).childCount })
        screen.picture("bundles")
        val chat = cards.getChildAt(2).findViewById<LinearLayout>(R.id.actions).getChildAt(0) as Button
        chat.performClick()
        assertEquals(ChatActivity::class.java.name, shadowOf(screen).nextStartedActivity.component!!.className)
    }

    @Test
    @Config(qualifiers = "+night")
    fun `bundles in the dark`() = shelf().picture("bundles-night")

    @Test
    fun `a fresh app says where models come from`() {
        val screen = bundles()
        screen.picture("bundles-none")
        val source = File(app.cacheDir, "picked.edge")
        source.mkdirs()
        app.bundles.add(FolderSource(source))
        idle()
        assertTrue("is not a bundle" in screen.words(R.id.message))
    }

    private fun talk(name: String) {
        FakeBundle.write(folder)
        val gate = CompletableDeferred<Unit>()
        app.model = FakeModel(gate = gate)
        val controller = start(ChatActivity::class.java)
        val screen = controller.get()
        screen.say("Why is the sky blue? Answer in two sentences.")
        assertEquals("The sky is blue ", screen.turns().last())
        assertEquals("Stop", screen.findViewById<View>(R.id.send).contentDescription)
        screen.picture("$name-streaming")
        gate.complete(Unit)
        idle()
        assertEquals("The sky is blue because air scatters blue light.", screen.turns().last())
        screen.say("And in the evening?")
        screen.picture(name)
        assertEquals("4096 tokens, 214 MB", screen.words(R.id.detail))
    }

    @Test
    fun `a chat streams`() = talk("chat")

    @Test
    @Config(qualifiers = "+night")
    fun `a chat in the dark`() = talk("chat-night")

    @Test
    fun `stop ends an answer, and turning the phone keeps what was said`() {
        FakeBundle.write(folder)
        app.model = FakeModel(gate = CompletableDeferred())
        val controller = start(ChatActivity::class.java)
        controller.get().say("Why?")
        controller.get().press(R.id.send)
        assertEquals("Stopped.", controller.get().words(R.id.note))
        controller.get().findViewById<EditText>(R.id.input).setText("And th")
        controller.recreate()
        idle()
        assertEquals(listOf("Why?", "The sky is blue "), controller.get().turns())
        assertEquals("And th", controller.get().words(R.id.input))
        assertTrue(controller.get().findViewById<View>(R.id.send).isEnabled)
    }

    @Test
    fun `a model that was closed for memory is told, and loads again`() {
        FakeBundle.write(folder)
        val screen = start(ChatActivity::class.java).get()
        screen.say("Why?")
        app.onTrimMemory(40)
        idle()
        assertTrue("needed memory" in screen.words(R.id.problem_text))
        assertFalse(screen.findViewById<View>(R.id.send).isEnabled)
        screen.picture("chat-closed")
        screen.press(R.id.problem_action)
        assertEquals(View.GONE, screen.findViewById<View>(R.id.problem).visibility)
        assertEquals(Pressure.CLOSE, Pressure.of(40))
    }

    @Test
    fun `a model that took the app down is asked about`() {
        FakeBundle.write(folder)
        LoadMarker(File(app.filesDir, "loading")).begin(NAME)
        val screen = start(ChatActivity::class.java).get()
        assertTrue("was not loaded again" in screen.words(R.id.problem_text))
        screen.press(R.id.problem_action)
        assertTrue(screen.findViewById<View>(R.id.send).isEnabled)
    }

    private fun measure(name: String): LatencyActivity {
        FakeBundle.write(folder)
        val screen = start(LatencyActivity::class.java).get()
        if (name == "latency") screen.picture("latency-none")
        screen.press(R.id.measure)
        assertEquals(3, screen.findViewById<LinearLayout>(R.id.charts).childCount)
        screen.picture(name)
        return screen
    }

    @Test
    fun `a profile is drawn, and shared as a file`() {
        val screen = measure("latency")
        screen.press(R.id.share)
        assertEquals("android.intent.action.CHOOSER", shadowOf(screen).nextStartedActivity.action)
        val uri = SharedProfiles.uri(app.latency(folder).file)
        val text = app.contentResolver.openInputStream(uri)!!.use { it.readBytes().decodeToString() }
        assertTrue("edge-profile" in text)
        File("target/shared.profile.json").writeText(text)
        app.contentResolver.query(uri, null, null, null, null)!!.use {
            assertTrue(it.moveToFirst())
            assertEquals("smollm2-135m-instruct.profile.json", it.getString(0))
        }
    }

    @Test
    @Config(qualifiers = "+night")
    fun `a profile in the dark`() {
        measure("latency-night")
    }

    private companion object {
        const val NAME = "smollm2-135m-instruct.edge"
    }
}
