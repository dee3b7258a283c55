package dev.edgelm.app.screens

import android.annotation.SuppressLint
import android.content.Context
import android.graphics.Canvas
import android.graphics.Paint
import android.graphics.Path
import android.graphics.Typeface
import android.view.View
import dev.edgelm.app.R
import dev.edgelm.app.latency.Chart
import dev.edgelm.app.latency.Series

/** Draws one chart as lines over a grid. Made by code alone, so it has no constructor for layouts. */
@SuppressLint("ViewConstructor")
class ChartView(context: Context, private val chart: Chart) : View(context) {
    private val dp = resources.displayMetrics.density
    private val sp = dp * resources.configuration.fontScale
    private val colors = listOf(R.color.line_1, R.color.line_2, R.color.line_3, R.color.line_4).map(context::getColor)
    private val quiet = text(12f, R.color.text_quiet, Typeface.DEFAULT)
    private val bold = text(14f, R.color.text, Typeface.create("sans-serif-medium", Typeface.NORMAL))
    private val grid = Paint().apply {
        color = context.getColor(R.color.outline)
        strokeWidth = dp
    }
    private val line = Paint(Paint.ANTI_ALIAS_FLAG).apply {
        strokeWidth = 2.5f * dp
        strokeJoin = Paint.Join.ROUND
        strokeCap = Paint.Cap.ROUND
    }
    private val path = Path()

    init {
        setBackgroundResource(R.drawable.card)
    }

    override fun onMeasure(widthSpec: Int, heightSpec: Int) =
        setMeasuredDimension(MeasureSpec.getSize(widthSpec), (HEIGHT * dp).toInt())

    override fun onDraw(canvas: Canvas) {
        val left = 52 * dp
        val right = width - 24 * dp
        val top = 48 * dp
        val bottom = height - 48 * dp
        canvas.drawText(chart.title, 16 * dp, 28 * dp, bold)
        quiet.textAlign = Paint.Align.RIGHT
        for (tick in chart.yTicks) {
            val y = bottom - (bottom - top) * chart.y(tick).toFloat()
            canvas.drawLine(left, y, right, y, grid)
            canvas.drawText(number(tick), left - 8 * dp, y + 4 * sp, quiet)
        }
        quiet.textAlign = Paint.Align.CENTER
        for (tick in chart.xTicks) canvas.drawText(number(tick), x(tick, left, right), bottom + 18 * sp, quiet)
        canvas.drawText(chart.xLabel, (left + right) / 2, height - 12 * dp, quiet)
        for ((i, series) in chart.series.withIndex()) {
            line.color = colors[i % colors.size]
            draw(canvas, series, left, right, top, bottom)
        }
        legend(canvas, right)
    }

    private fun draw(canvas: Canvas, series: Series, left: Float, right: Float, top: Float, bottom: Float) {
        path.rewind()
        for ((i, point) in series.points.withIndex()) {
            val x = x(point.first, left, right)
            val y = bottom - (bottom - top) * chart.y(point.second).toFloat()
            if (i == 0) path.moveTo(x, y) else path.lineTo(x, y)
            line.style = Paint.Style.FILL
            canvas.drawCircle(x, y, 4 * dp, line)
        }
        line.style = Paint.Style.STROKE
        canvas.drawPath(path, line)
    }

    /** The names of the lines, from the right edge of the title's row on. */
    private fun legend(canvas: Canvas, right: Float) {
        var end = right
        quiet.textAlign = Paint.Align.RIGHT
        line.style = Paint.Style.FILL
        for ((i, series) in chart.series.withIndex().reversed()) {
            if (series.name.isEmpty()) continue
            canvas.drawText(series.name, end, 28 * dp, quiet)
            end -= quiet.measureText(series.name) + 9 * dp
            line.color = colors[i % colors.size]
            canvas.drawCircle(end, 24 * dp, 4 * dp, line)
            end -= 12 * dp
        }
    }

    private fun x(value: Double, left: Float, right: Float) = left + (right - left) * chart.x(value).toFloat()

    private fun number(value: Double) = if (value == Math.rint(value)) "%.0f".format(value) else "%.3g".format(value).trimEnd('0')

    private fun text(size: Float, colorId: Int, face: Typeface) = Paint(Paint.ANTI_ALIAS_FLAG).apply {
        textSize = size * sp
        color = context.getColor(colorId)
        typeface = face
    }

    private companion object {
        const val HEIGHT = 240
    }
}
