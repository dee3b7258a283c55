package androidx.test.internal.platform.app

/** Found as a service of Robolectric's, and not called here. */
interface ActivityInvoker
