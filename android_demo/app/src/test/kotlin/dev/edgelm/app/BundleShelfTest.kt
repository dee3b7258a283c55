package dev.edgelm.app

import dev.edgelm.BundleException
import dev.edgelm.app.bundles.BundleShelf
import dev.edgelm.app.bundles.BundlesPresenter
import dev.edgelm.app.model.LoadMarker
import java.io.File
import java.nio.file.Path
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.test.TestScope
import kotlinx.coroutines.test.UnconfinedTestDispatcher
import kotlinx.coroutines.test.runTest
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

class BundleShelfTest {
    @TempDir
    lateinit var temporary: Path

    private val source get() = File(temporary.toFile(), "picked.edge")
    private val folder get() = File(temporary.toFile(), "bundles")
    private val shelf get() = BundleShelf(folder)

    @Test
    fun `a copy has the manifest's files and no other, with progress to the end`() {
        FakeBundle.write(source)
        File(source, "notes.txt").writeText("mine")
        val seen = ArrayList<Long>()
        val target = shelf.add(FolderSource(source)) { done, total -> seen += total - done }
        assertEquals(0, seen.last())
        assertEquals(listOf("edge.json", "golden.json", "graphs", "tokenizer.json", "weights.bin"), target.list()!!.sorted())
        assertEquals(listOf("smollm2-135m-instruct"), shelf.entries().map { it.title })
        assertEquals("llama, int4, 0 MB", shelf.entries()[0].detail)
    }

    @Test
    fun `a folder that is no bundle, or lacks a file, is told and leaves nothing`() {
        source.mkdirs()
        fun refusal() = assertThrows(BundleException::class.java) { shelf.add(FolderSource(source)) { _, _ -> } }.message!!
        assertTrue("is not a bundle" in refusal())
        FakeBundle.write(source)
        File(source, "golden.json").delete()
        assertTrue("has no golden.json" in refusal())
        File(source, "golden.json").writeText("cut")
        assertTrue("bytes" in refusal())
        assertEquals(emptyList<String>(), folder.list()!!.toList())
    }

    @Test
    fun `a name from outside does not lead out of the folder`() {
        FakeBundle.write(source)
        assertEquals(File(folder, "evil.edge"), shelf.add(FolderSource(source, "../../evil")) { _, _ -> })
        assertEquals(File(folder, "model.edge"), shelf.add(FolderSource(source, "..")) { _, _ -> })
    }

    @Test
    fun `a copy that is ended leaves nothing`() {
        FakeBundle.write(source)
        assertThrows(CancellationException::class.java) {
            shelf.add(FolderSource(source)) { _, _ -> throw CancellationException("enough") }
        }
        assertEquals(emptyList<String>(), folder.list()!!.toList())
    }

    @Test
    @OptIn(ExperimentalCoroutinesApi::class)
    fun `the list has what is there, what came with the app and what crashed`() = runTest {
        val io = UnconfinedTestDispatcher(testScheduler)
        val marker = LoadMarker(File(temporary.toFile(), "loading"))
        FakeBundle.write(source)
        val presenter = BundlesPresenter(shelf, { listOf(FolderSource(source)) }, marker, TestScope(io), io)
        presenter.refresh()
        assertEquals(listOf("picked.edge"), presenter.state.value.offered.map { it.name })
        presenter.add(presenter.state.value.offered[0])
        marker.begin("picked.edge")
        presenter.refresh()
        val state = presenter.state.value
        assertEquals(listOf("picked.edge"), state.entries.map { it.folder.name })
        assertEquals(setOf("picked.edge"), state.crashed)
        assertTrue(state.offered.isEmpty())
        assertNull(state.copying)
        presenter.remove(state.entries[0])
        assertTrue(presenter.state.value.entries.isEmpty())
        File(source, "edge.json").delete()
        presenter.add(FolderSource(source))
        assertTrue("is not a bundle" in presenter.state.value.message!!)
    }
}
