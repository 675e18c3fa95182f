// Bytes in use over the step, stacked by kind.

function drawMemory(svg, memory, loops, axis) {
  const kinds = Object.keys(memory.by_kind).filter((kind) => memory.by_kind[kind].some((bytes) => bytes > 0));
  const TOP = 18; // for the loops' labels
  let below = memory.at.map(() => 0);
  const layers = kinds.map((kind) => {
    const floor = below;
    below = floor.map((bytes, index) => bytes + memory.by_kind[kind][index]);
    return { kind, floor, ceiling: below };
  });
  const totals = below;
  const peak = totals.reduce((best, bytes, index) => bytes > totals[best] ? index : best, 0);
  const highest = Math.max(memory.available, totals[peak] ?? 0) * 1.08;
  legend("memory-legend", kinds);

  axis.drawings.push(() => {
    const { width, height } = svg.getBoundingClientRect();
    const y = (bytes) => height - 4 - bytes / highest * (height - 4 - TOP);
    const left = GUTTER, right = width - MARGIN;
    svg.replaceChildren();

    const gibs = ticks(0, highest / 2 ** 30, 5);
    for (const gib of gibs) {
      put("line", { x1: left, x2: right, y1: y(gib * 2 ** 30), y2: y(gib * 2 ** 30), class: "grid" });
      put("text", { x: left - 8, y: y(gib * 2 ** 30) + 4, "text-anchor": "end" }, gib === gibs.at(-1) ? `${gib} GiB` : `${gib}`);
    }
    for (const loop of loops) {
      const from = Math.max(left, axis.x(loop.start, width)), to = Math.min(right, axis.x(loop.end, width));
      if (to <= from) continue;
      put("rect", { x: from, y: TOP - 4, width: to - from, height: height - TOP, class: "loop" });
      put("text", { x: (from + to) / 2, y: TOP - 8, "text-anchor": "middle" }, `×${loop.trips}`);
    }
    const shown = indexes(width);
    for (const { kind, floor, ceiling } of layers) {
      put("path", { d: area(shown, floor, ceiling, width, y), class: "area", fill: `var(--${kind.replaceAll(" ", "-")})` });
    }
    put("line", { x1: left, x2: right, y1: y(memory.available), y2: y(memory.available), class: "limit" });
    put("text", { x: right - 4, y: y(memory.available) - 5, "text-anchor": "end", class: "limit-label" }, `available ${sizeText(memory.available)}`);
    if (memory.at[peak] >= axis.from && memory.at[peak] <= axis.to) {
      const anchor = axis.x(memory.at[peak], width) > right - 120 ? "end" : "start";
      put("text", { x: axis.x(memory.at[peak], width), y: y(totals[peak]) - 5, "text-anchor": anchor, class: "peak" }, `peak ${sizeText(totals[peak])}`);
    }
    if (axis.cursor !== null) {
      const x = axis.x(axis.cursor, width);
      if (x >= left && x <= right) put("line", { x1: x, x2: x, y1: TOP - 4, y2: height, class: "cursor" });
    }
  });

  // At most one point a pixel: the highest, so that no peak is lost.
  function indexes(width) {
    const perPixel = new Map();
    for (let index = Math.max(0, indexAt(axis.from)); index < memory.at.length && memory.at[index] <= axis.to; index++) {
      const pixel = Math.round(axis.x(memory.at[index], width));
      if (!(totals[perPixel.get(pixel)] >= totals[index])) perPixel.set(pixel, index);
    }
    return [...perPixel.values()];
  }

  function area(shown, floor, ceiling, width, y) {
    const x = (seconds) => Math.min(width - MARGIN, Math.max(GUTTER, axis.x(seconds, width))).toFixed(1);
    const edge = (heights) => shown.flatMap((index, place) => {
      const next = place + 1 < shown.length ? memory.at[shown[place + 1]] : axis.to;
      return [`${x(memory.at[index])},${y(heights[index]).toFixed(1)}`, `${x(next)},${y(heights[index]).toFixed(1)}`];
    });
    return shown.length ? `M${edge(ceiling).join("L")}L${edge(floor).reverse().join("L")}Z` : "";
  }

  // The last point at or before a moment.
  function indexAt(seconds) {
    let low = 0, high = memory.at.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (memory.at[middle] <= seconds) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  function put(tag, attributes, text) {
    const element = document.createElementNS(svg.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text) element.textContent = text;
    svg.append(element);
  }

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const seconds = axis.seconds(event.clientX - box.left, box.width);
    const index = indexAt(seconds);
    if (seconds < axis.from || seconds > axis.to || index < 0) return leave();
    axis.point(seconds);
    const rows = kinds.map((kind) => [kind, sizeText(memory.by_kind[kind][index]), kind]).reverse();
    const share = (totals[index] / memory.available * 100).toFixed(0);
    showTooltip(event.clientX, event.clientY, `at ${secondsText(seconds)}`, rows, [`in use, ${share}% of available`, sizeText(totals[index])]);
  });
  svg.addEventListener("pointerleave", leave);

  function leave() {
    hideTooltip();
    axis.point(null);
  }
}
