package dev.edgelm

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Test

class ErrorsTest {
    @Test
    fun `an exception is its sentence`() {
        assertEquals("no", InputException("no").message)
    }
}
