package dev.edgelm.app.screens

import android.content.ContentResolver
import android.content.res.AssetManager
import android.net.Uri
import android.provider.DocumentsContract
import android.provider.DocumentsContract.Document
import dev.edgelm.app.bundles.BundleSource
import dev.edgelm.app.bundles.END
import java.io.FileNotFoundException
import java.io.InputStream

/** A bundle that was packed with the app, in `assets/bundles`. */
class AssetSource private constructor(private val assets: AssetManager, override val name: String) : BundleSource {
    override fun open(path: String): InputStream? = try {
        assets.open("$FOLDER/$name/$path")
    } catch (_: FileNotFoundException) {
        null
    }

    companion object {
        private const val FOLDER = "bundles"

        fun all(assets: AssetManager): List<AssetSource> =
            assets.list(FOLDER).orEmpty().filter { it.endsWith(END) }.map { AssetSource(assets, it) }
    }
}

/** A bundle in a folder that the user picked. Documents have no paths, so each part is looked up by its name. */
class TreeSource(private val resolver: ContentResolver, private val tree: Uri) : BundleSource {
    private val root = DocumentsContract.getTreeDocumentId(tree)
    private val children = HashMap<String, Map<String, String>>() // of a document: ids by name

    override val name: String by lazy {
        val uri = DocumentsContract.buildDocumentUriUsingTree(tree, root)
        query(uri, Document.COLUMN_DISPLAY_NAME).firstOrNull()?.get(0) ?: root.substringAfterLast('/')
    }

    override fun open(path: String): InputStream? {
        var id = root
        for (part in path.split('/')) id = children.getOrPut(id) { list(id) }[part] ?: return null
        return resolver.openInputStream(DocumentsContract.buildDocumentUriUsingTree(tree, id))
    }

    private fun list(id: String): Map<String, String> {
        val uri = DocumentsContract.buildChildDocumentsUriUsingTree(tree, id)
        return query(uri, Document.COLUMN_DISPLAY_NAME, Document.COLUMN_DOCUMENT_ID).associate { it[0] to it[1] }
    }

    private fun query(uri: Uri, vararg columns: String): List<List<String>> =
        resolver.query(uri, columns, null, null, null)?.use { rows ->
            buildList { while (rows.moveToNext()) add(columns.indices.map { rows.getString(it) }) }
        }.orEmpty()
}
