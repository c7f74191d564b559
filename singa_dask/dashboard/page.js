// Shows what the scheduler tells (page.py): wire holds its last messages. What is set here stays here.
const quiet = {sync: false}
const set = (model, values) => model.setv(values, quiet)
const columns = (source, rows) =>
  Object.fromEntries(Object.keys(source.data).map((name, place) => [name, rows.map((row) => row[place] ?? NaN)]))
const put = (source, rows) => set(source, {data: columns(source, rows)})

// A line is a row of segments, each from a measurement of its group to the next one.
const segments = (rows) =>
  rows.map(([group, step, starts, ...end]) => {
    const begin = starts ? end : wire.ends.get(group) ?? end
    wire.ends.set(group, end)
    return [group, step, ...begin, ...end]
  })

const show = (told) => {
  put(table, told.runs)
  view.change.emit() // else the table is drawn anew only where the number of its rows changes
  set(table.selected, {indices: told.chosen})
  if (told.head === undefined) return
  if (head.text !== told.head) set(head, {text: told.head})
  if (told.fresh) {
    wire.ends = new Map()
    put(lines, segments(told.rows))
  } else if (told.rows.length > 0) {
    lines.stream(columns(lines, segments(told.rows)), undefined, quiet)
  }
  for (const [name, title] of Object.entries(told.titles)) {
    set(plots[name], {visible: title !== null})
    if (title !== null) set(plots[name].title, {text: title})
  }
  if (told.points) put(points, told.points)
  if (told.marks) put(marks, told.marks)
  put(times, told.times)
  set(times_axis, {major_label_overrides: new Map(told.times.map(([place, rank]) => [place, rank]))})
}

// Figures are drawn on canvases, which style sheets do not reach.
const dark = window.matchMedia("(prefers-color-scheme: dark)")
const fit_scheme = () => {
  const [text, line] = dark.matches ? ["#d0d0d0", "#3a3d42"] : ["#444444", "#e0e0e0"]
  for (const plot of figures) {
    set(plot.title, {text_color: text})
    set(plot, {outline_line_color: line})
    for (const axis of [...plot.left, ...plot.below]) {
      set(axis, {axis_label_text_color: text, major_label_text_color: text, axis_line_color: text})
      set(axis, {major_tick_line_color: text, minor_tick_line_color: null})
    }
    for (const grid of plot.center.filter((each) => "grid_line_color" in each)) set(grid, {grid_line_color: line})
    for (const legend of plot.above.filter((each) => "label_text_color" in each)) set(legend, {label_text_color: text})
  }
}

if (wire.shown === undefined) {
  wire.shown = -1
  for (const plot of figures) {
    for (const range of [plot.x_range, plot.y_range]) {
      const setv = range.setv.bind(range) // ranges that follow their data would tell the scheduler so each time
      range.setv = (values, options) => setv(values, {...options, ...quiet})
    }
  }
  fit_scheme()
  dark.addEventListener("change", fit_scheme)
}
wire.data.number.forEach((number, place) => {
  if (number <= wire.shown) return
  wire.shown = number
  show(JSON.parse(wire.data.told[place]))
})
