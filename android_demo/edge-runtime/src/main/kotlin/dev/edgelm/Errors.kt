package dev.edgelm

/** What was wrong, in a sentence that an app can show. */
open class EdgeException(message: String, cause: Throwable? = null) : Exception(message, cause)

/** A bundle that cannot be used: damaged, too new, or not readable. */
class BundleException(message: String, cause: Throwable? = null) : EdgeException(message, cause)

/** Something that was asked for and cannot be done: an option out of its range, a prompt that is too long. */
class InputException(message: String) : EdgeException(message)
