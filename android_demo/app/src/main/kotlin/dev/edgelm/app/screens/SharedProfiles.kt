package dev.edgelm.app.screens

import android.content.ContentProvider
import android.content.ContentValues
import android.database.Cursor
import android.database.MatrixCursor
import android.net.Uri
import android.os.ParcelFileDescriptor
import android.provider.OpenableColumns
import dev.edgelm.app.EdgeApp
import java.io.File
import java.io.FileNotFoundException

/** Lets an app that was given a profile's address read that file, and no other. */
class SharedProfiles : ContentProvider() {
    override fun onCreate() = true

    override fun getType(uri: Uri) = TYPE

    override fun openFile(uri: Uri, mode: String): ParcelFileDescriptor =
        ParcelFileDescriptor.open(file(uri), ParcelFileDescriptor.MODE_READ_ONLY)

    override fun query(
        uri: Uri, projection: Array<String>?, selection: String?, arguments: Array<String>?, order: String?,
    ): Cursor {
        val file = file(uri)
        val columns = projection ?: arrayOf(OpenableColumns.DISPLAY_NAME, OpenableColumns.SIZE)
        return MatrixCursor(columns, 1).apply {
            val row = newRow()
            for (column in columns) {
                row.add(if (column == OpenableColumns.DISPLAY_NAME) file.name else if (column == OpenableColumns.SIZE) file.length() else null)
            }
        }
    }

    private fun file(uri: Uri): File {
        val name = uri.lastPathSegment.orEmpty()
        val file = File(File(context!!.filesDir, EdgeApp.PROFILES), name)
        if ('/' in name || !file.isFile) throw FileNotFoundException("There is no profile at $uri.")
        return file
    }

    override fun insert(uri: Uri, values: ContentValues?): Uri? = null

    override fun update(uri: Uri, values: ContentValues?, selection: String?, arguments: Array<String>?) = 0

    override fun delete(uri: Uri, selection: String?, arguments: Array<String>?) = 0

    companion object {
        const val TYPE = "application/json"

        fun uri(file: File): Uri = Uri.Builder().scheme("content").authority("dev.edgelm.app.profiles").appendPath(file.name).build()
    }
}
