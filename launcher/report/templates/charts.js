"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const HEIGHT = 220, Y_AXIS_WIDTH = 54, X_AXIS_HEIGHT = 32;
  const color = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const plain = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
  const format = (value) => {
    if (value == null) return "–";
    const size = Math.abs(value);
    if (size !== 0 && size < 1e-3) return value.toExponential(1).replace(".0e", "e");
    return size >= 1e4 ? compact.format(value) : plain.format(value);
  };

  /** Returns the nearest index with a value: curves of one chart have points at different steps. */
  const nearest = (plot, series, index) => {
    const values = plot.data[series];
    if (values[index] != null) return index;
    for (let far = 1; far < values.length; far++) {
      if (values[index - far] != null) return index - far;
      if (values[index + far] != null) return index + far;
    }
    return index;
  };

  /** Shows the last values in the legend while the cursor is in no chart. */
  const showLast = (plot) => {
    if (plot.cursor.idx != null) return;
    const last = plot.data[0].length - 1;
    plot.legend.values = plot.series.map((series, n) => ({
      _: series.value(plot, plot.data[n][nearest(plot, n, last)]),
    }));
    plot.setLegend();
  };

  const lineOptions = (line, number) => {
    const isBound = line.kind === "bound", isSpikes = line.kind === "spikes";
    const hasPoints = line.kind === "points" || isSpikes;
    const own = `--run-${(page.names.length > 1 ? line.run : number) % 8}`;
    const stroke = color(isBound ? "--muted" : isSpikes ? "--bad" : own);
    return {
      label: line.label,
      stroke,
      width: line.kind === "points" ? 2 : 1.25,
      dash: isBound ? [6, 4] : undefined,
      paths: isSpikes ? () => null : undefined,
      points: { show: hasPoints, size: 6, fill: stroke },
      value: (_, value) => format(value),
    };
  };

  const draw = (holder) => {
    const chart = page.charts[holder.id];
    const tables = chart.lines.map((line) => line.data);
    const axis = {
      stroke: color("--muted"),
      font: "12px system-ui, sans-serif",
      grid: { stroke: color("--line"), width: 1 },
      ticks: { stroke: color("--line"), width: 1, size: 5 },
    };
    const options = {
      width: holder.clientWidth,
      height: HEIGHT,
      scales: { x: { time: false }, y: { distr: chart.log ? 3 : 1 } },
      axes: [
        { ...axis, size: X_AXIS_HEIGHT, values: (_, splits) => splits.map((v) => (v % 1 ? "" : compact.format(v))) },
        { ...axis, size: Y_AXIS_WIDTH, values: (_, splits) => splits.map((v) => (v == null ? "" : format(v))) },
      ],
      hooks: { setCursor: [showLast] },
      cursor: { sync: { key: "steps" }, dataIdx: nearest, points: { size: 7 } },
      series: [
        { label: "step", value: (_, value) => (value == null ? "–" : value.toLocaleString("en")) },
        ...chart.lines.map(lineOptions),
      ],
    };
    const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
    const plot = new uPlot(options, data, holder);
    showLast(plot);
    return plot;
  };

  const holders = [...document.querySelectorAll(".chart")];
  let plots = [];
  const drawAll = () => {
    plots.forEach((plot) => plot.destroy());
    plots = holders.map(draw);
  };
  drawAll();
  new ResizeObserver(() => {
    plots.forEach((plot, n) => {
      const width = holders[n].clientWidth;
      if (width !== plot.width) plot.setSize({ width, height: HEIGHT });
    });
  }).observe(document.body);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  const printed = (isPrinted) => () => {
    document.documentElement.classList.toggle("print", isPrinted);
    drawAll();
  };
  addEventListener("beforeprint", printed(true));
  addEventListener("afterprint", printed(false));
})();
