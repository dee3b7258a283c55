package dev.edgelm.app.screens

import android.Manifest
import android.app.Activity
import android.content.ClipboardManager
import android.content.Context
import android.content.pm.PackageManager
import android.graphics.Bitmap
import android.graphics.Canvas
import android.media.AudioRecord
import android.os.Bundle
import android.os.Looper
import android.view.View
import android.widget.Button
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.ListView
import android.widget.Spinner
import android.widget.TextView
import dev.edgelm.InputException
import dev.edgelm.app.EdgeApp
import dev.edgelm.app.FakeBundle
import dev.edgelm.app.FakeHearer
import dev.edgelm.app.FakeMicrophone
import dev.edgelm.app.FakeModel
import dev.edgelm.app.FakeTranslator
import dev.edgelm.app.FolderSource
import dev.edgelm.app.ProfileInstrumentation
import dev.edgelm.app.R
import dev.edgelm.app.model.LoadMarker
import dev.edgelm.app.model.LoadedModel
import dev.edgelm.app.model.ModelState
import dev.edgelm.app.model.Pressure
import java.io.File
import kotlin.concurrent.thread
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.runBlocking
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
import org.robolectric.shadows.ShadowAudioRecord

/** The app with models that a test makes. */
class TestApp : EdgeApp() {
    var model: LoadedModel = FakeModel()
    override val io = Dispatchers.Unconfined
    override val microphone = FakeMicrophone()

    override fun load(bundle: File) = model
}

/** The screens as Android draws them; pictures of them are in target/screens. */
@RunWith(RobolectricTestRunner::class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@Config(sdk = [34], application = TestApp::class, qualifiers = "w360dp-h740dp-xhdpi")
class ScreensTest {
    private val app get() = RuntimeEnvironment.getApplication() as TestApp
    private val folder get() = app.shelf.folder(NAME)

    private fun <T : Activity> start(screen: Class<T>, bundle: String = NAME): ActivityController<T> {
        val intent = ScreenActivity.intent(app as Context, screen, bundle)
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
        FakeBundle.write(app.shelf.folder("opus-mt-en-de.edge"), "opus-mt-en-de", "marian")
        FakeBundle.write(app.shelf.folder("whisper-base.edge"), "whisper-base", "whisper")
        app.shelf.folder("broken.edge").mkdirs()
        LoadMarker(File(app.filesDir, "loading")).begin(NAME)
        return bundles()
    }

    @Test
    fun `bundles are cards with what can be done`() {
        val screen = shelf()
        val cards = screen.findViewById<LinearLayout>(R.id.cards)
        fun actions(card: Int) = cards.getChildAt(card).findViewById<LinearLayout>(R.id.actions)
            .let { all -> List(all.childCount) { (all.getChildAt(it) as Button).text.toString() } }
        assertEquals(
            listOf(emptyList(), listOf("Translate", "Latency"), listOf("Chat", "Latency"), listOf("Dictate", "Latency")),
            List(cards.childCount, ::actions),
        )
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

    private fun Activity.labels(id: Int): List<String> =
        findViewById<Spinner>(id).adapter.let { all -> List(all.count) { all.getItem(it).toString() } }

    private fun translate(name: String) {
        FakeBundle.write(app.shelf.folder(TRANSLATOR), family = "m2m_100")
        val gate = CompletableDeferred<Unit>()
        app.model = FakeTranslator(gate)
        val controller = start(TranslateActivity::class.java, TRANSLATOR)
        val screen = controller.get()
        if (name == "translate") screen.picture("translate-empty")
        assertEquals(3, screen.labels(R.id.from).size)
        assertEquals("German", screen.findViewById<Spinner>(R.id.to).selectedItem.toString())
        screen.findViewById<Spinner>(R.id.to).setSelection(1)
        idle()
        assertEquals("fra_Latn", app.translate(app.shelf.folder(TRANSLATOR)).state.value.translation.to)
        screen.findViewById<EditText>(R.id.source).setText("A man rides a bicycle.")
        screen.press(R.id.start)
        assertEquals("Ein Mann fährt ", screen.words(R.id.output))
        assertEquals("Stop", screen.words(R.id.start))
        screen.picture("$name-streaming")
        controller.recreate() // the phone is turned
        idle()
        gate.complete(Unit)
        idle()
        val turned = controller.get()
        assertEquals("Ein Mann fährt auf einem Fahrrad.", turned.words(R.id.output))
        assertEquals("A man rides a bicycle.", turned.words(R.id.source))
        assertEquals("French", turned.findViewById<Spinner>(R.id.to).selectedItem.toString())
        turned.picture(name)
        turned.press(R.id.other)
        val copied = app.getSystemService(ClipboardManager::class.java).primaryClip!!.getItemAt(0).text
        assertEquals("Ein Mann fährt auf einem Fahrrad.", copied.toString())
        turned.press(R.id.more)
        assertEquals("android.intent.action.CHOOSER", shadowOf(turned).nextStartedActivity.action)
    }

    @Test
    fun `a translation streams, outlives a turn, and is copied and shared`() = translate("translate")

    @Test
    @Config(qualifiers = "+night")
    fun `a translation in the dark`() = translate("translate-night")

    @Test
    @Config(qualifiers = "w740dp-h360dp-land")
    fun `a translation on a turned phone`() = translate("translate-land")

    @Test
    fun `a model without a choice of languages shows none`() {
        FakeBundle.write(app.shelf.folder(TRANSLATOR), family = "marian")
        app.model = FakeTranslator(sources = emptyList())
        val screen = start(TranslateActivity::class.java, TRANSLATOR).get()
        assertEquals(View.GONE, screen.findViewById<View>(R.id.languages).visibility)
        assertFalse(screen.findViewById<View>(R.id.other).isEnabled)
    }

    private fun dictate(name: String) {
        FakeBundle.write(app.shelf.folder(WHISPER), family = "whisper")
        val gate = CompletableDeferred<Unit>()
        app.model = FakeHearer(gate)
        shadowOf(app).grantPermissions(Manifest.permission.RECORD_AUDIO)
        val controller = start(DictateActivity::class.java, WHISPER)
        if (name == "dictate") controller.get().picture("dictate-empty")
        controller.get().press(R.id.record)
        controller.recreate() // the phone is turned
        idle()
        val screen = controller.get()
        assertEquals("0:01", screen.words(R.id.elapsed))
        assertEquals("Stop", screen.words(R.id.record))
        screen.picture("$name-recording")
        screen.press(R.id.record)
        assertEquals(1, screen.findViewById<ListView>(R.id.lines).count)
        assertEquals(View.VISIBLE, screen.findViewById<View>(R.id.loading).visibility)
        gate.complete(Unit)
        screen.picture(name)
        val line = screen.findViewById<ListView>(R.id.lines).let { it.adapter.getView(2, null, it) }
        assertEquals("1:05", line.findViewById<TextView>(R.id.time).text.toString())
        assertTrue(screen.findViewById<View>(R.id.transcribe).isEnabled)
        screen.press(R.id.other)
        val copied = app.getSystemService(ClipboardManager::class.java).primaryClip!!.getItemAt(0).text
        assertTrue(copied.endsWith("passed. Nobody ever read it."))
    }

    @Test
    fun `a dictation is recorded, heard and copied`() = dictate("dictate")

    @Test
    @Config(qualifiers = "+night")
    fun `a dictation in the dark`() = dictate("dictate-night")

    @Test
    fun `the microphone is asked for, and a refusal is a sentence`() {
        FakeBundle.write(app.shelf.folder(WHISPER), family = "whisper")
        app.model = FakeHearer()
        val screen = start(DictateActivity::class.java, WHISPER).get()
        screen.press(R.id.record)
        assertEquals(listOf(Manifest.permission.RECORD_AUDIO), shadowOf(screen).lastRequestedPermission.requestedPermissions.toList())
        screen.onRequestPermissionsResult(1, arrayOf(Manifest.permission.RECORD_AUDIO), intArrayOf(PackageManager.PERMISSION_DENIED))
        idle()
        assertTrue("allow it" in screen.words(R.id.note))
        screen.picture("dictate-refused")
        screen.onRequestPermissionsResult(1, arrayOf(Manifest.permission.RECORD_AUDIO), intArrayOf(PackageManager.PERMISSION_GRANTED))
        idle()
        assertEquals("Stop", screen.words(R.id.record))
    }

    @Test
    fun `a hidden screen records no more`() {
        FakeBundle.write(app.shelf.folder(WHISPER), family = "whisper")
        app.model = FakeHearer()
        shadowOf(app).grantPermissions(Manifest.permission.RECORD_AUDIO)
        val controller = start(DictateActivity::class.java, WHISPER)
        controller.get().press(R.id.record)
        controller.pause().stop()
        idle()
        assertEquals(FakeHearer.LINES, app.dictate(app.shelf.folder(WHISPER)).state.value.dictation.lines)
    }

    @Test
    fun `the phone's microphone gives samples until it is left, or says why not`() = runBlocking {
        val given = ShortArray(4000) { it.toShort() }
        var left = 0
        val source = object : ShadowAudioRecord.AudioRecordSource {
            override fun readInShortArray(data: ShortArray, offset: Int, size: Int, blocking: Boolean): Int {
                val count = minOf(size, given.size - left)
                given.copyInto(data, offset, left, left + count)
                left += count
                return if (count > 0) count else AudioRecord.ERROR_DEAD_OBJECT
            }
        }
        ShadowAudioRecord.setSourceProvider { source }
        val heard = ArrayList<Short>()
        val problem = try {
            PhoneMicrophone().record(16_000).collect { heard += it.toList() }
            "none"
        } catch (e: InputException) {
            e.message!!
        }
        assertEquals(given.toList(), heard)
        assertTrue("another app" in problem)
    }

    @Test
    fun `only chat models are measured, and the page says so without loading another`() {
        FakeBundle.write(app.shelf.folder(WHISPER), family = "whisper")
        val screen = start(LatencyActivity::class.java, WHISPER).get()
        assertTrue("Only chat models" in screen.words(R.id.empty))
        assertFalse(screen.findViewById<View>(R.id.measure).isEnabled)
        assertEquals(ModelState.Nothing, app.holder.state.value)
        screen.picture("latency-whisper")
    }

    /** What a computer hears that asks for a measurement. */
    private fun ask(bundle: String?): Map<String, String?> {
        val heard = HashMap<String, String?>()
        val asked = object : ProfileInstrumentation() {
            override fun getTargetContext(): Context = app

            override fun start() = Unit

            override fun sendStatus(code: Int, status: Bundle) {
                heard["measured"] = status.getString("measured")
            }

            override fun finish(code: Int, results: Bundle) {
                heard["code"] = "$code"
                for (key in results.keySet()) heard[key] = results.getString(key)
            }
        }
        asked.onCreate(Bundle().apply { putString("bundle", bundle) })
        val thread = thread { asked.onStart() }
        while (thread.isAlive) {
            idle()
            thread.join(5)
        }
        return heard
    }

    @Test
    fun `a computer that asks for a measurement gets the profile's path, or a sentence`() {
        FakeBundle.write(folder)
        val path = "files/profiles/smollm2-135m-instruct.profile.json"
        assertEquals(mapOf("measured" to "steps at context 512", "code" to "-1", "profile" to path), ask(NAME))
        assertTrue("edge-profile" in File(app.dataDir, path).readText())
        app.model = FakeHearer()
        app.holder.close("Closed.")
        assertEquals(mapOf("code" to "0", "problem" to "Only chat models are measured so far."), ask(NAME))
        assertEquals("Name the bundle: -e bundle NAME.edge.", ask(null)["problem"])
    }

    private companion object {
        const val NAME = "smollm2-135m-instruct.edge"
        const val TRANSLATOR = "nllb-200-distilled-600m.edge"
        const val WHISPER = "whisper-base.edge"
    }
}
