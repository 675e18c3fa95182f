// What runs when: lanes of spans on a canvas, with loops shaded.

// Whether the device waits for it; what the core does itself is no waiting.
function isWaitedFor(span) {
  return span.lane !== "compute" && span.exposed > 0;
}

function drawSchedule(canvas, data, axis) {
  const { lanes, spans, height } = arranged(data.spans);
  const used = data.works.filter((work) => spans.some((span) => span.work === work));
  const pen = canvas.getContext("2d");
  let chosen = null; // the span under the pointer or reached by keys
  let drag = null; // [from, to] in pixels
  canvas.style.height = `${height}px`;
  legend("schedule-legend", used);
  if (spans.some(isWaitedFor)) {
    const key = made("span", "", "hatched: waited for");
    key.prepend(made("i", "swatch exposed"));
    document.getElementById("schedule-legend").append(key);
  }

  axis.drawings.push(() => {
    const width = canvas.clientWidth, scale = devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const ink = colour("ink"), quiet = colour("quiet"), line = colour("line"), shade = colour("shade");
    const paints = Object.fromEntries(used.map((work) => [work, { fill: colour(work), ink: inkOn(colour(work)), stripes: ink }]));
    drawAxis(width, quiet, line);
    drawLoops(width, quiet, shade);
    for (const lane of lanes) {
      pen.fillStyle = ink;
      pen.textAlign = "right";
      pen.fillText(lane.name, GUTTER - 10, lane.top + ROW / 2, GUTTER - 14);
    }
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, 0, width - GUTTER - MARGIN, height);
    pen.clip();
    pen.textAlign = "left";
    for (const span of spans) drawSpan(span, width, paints[span.work]);
    if (chosen) outline(chosen, width, ink);
    if (axis.cursor !== null) vertical(axis.x(axis.cursor, width), ink);
    if (drag) {
      pen.fillStyle = colour("matmul") + "40";
      pen.fillRect(Math.min(...drag), HEAD - 4, Math.abs(drag[1] - drag[0]), height - HEAD);
    }
    pen.restore();
  });

  function drawAxis(width, quiet, line) {
    pen.textAlign = "center";
    for (const tick of axis.ticks(Math.max(2, (width - GUTTER) / 110))) {
      pen.fillStyle = quiet;
      pen.fillText(secondsText(tick), axis.x(tick, width), 8);
      vertical(axis.x(tick, width), line);
    }
  }

  function drawLoops(width, quiet, shade) {
    pen.textAlign = "center";
    for (const loop of data.loops) {
      const from = Math.max(GUTTER, axis.x(loop.start, width)), to = Math.min(width - MARGIN, axis.x(loop.end, width));
      if (to <= from) continue;
      pen.fillStyle = shade;
      pen.fillRect(from, 16, to - from, height - 16);
      pen.fillStyle = quiet;
      const text = `×${loop.trips}  ${loop.module}`;
      pen.fillText(pen.measureText(text).width < to - from ? text : `×${loop.trips}`, (from + to) / 2, 25);
    }
  }

  function drawSpan(span, width, { fill, ink, stripes }) {
    if (span.end < axis.from || span.start > axis.to) return;
    const { x, y, across } = boxOf(span, width);
    pen.fillStyle = fill;
    pen.fillRect(x, y, across, ROW - 3);
    if (isWaitedFor(span)) hatch(stripes, x, y, across, Math.min(1, span.exposed / (span.end - span.start)));
    const from = Math.max(x, GUTTER), room = Math.min(x + across, width - MARGIN) - from - 10;
    if (room < 34) return;
    const text = fitted(span.module.split(".").slice(-2).join(".") || span.name, room);
    if (isWaitedFor(span)) pen.fillRect(from + 2, y + 2, pen.measureText(text).width + 6, ROW - 7);
    pen.fillStyle = ink;
    pen.fillText(text, from + 5, y + (ROW - 3) / 2 + 0.5);
  }

  // Stripes over the last part of a span, dark on light: the part that the device waits for.
  function hatch(stripes, x, y, across, part) {
    const bottom = y + ROW - 3, from = x + across * (1 - part);
    pen.save();
    pen.beginPath();
    pen.rect(from, y, Math.max(1.5, across * part), ROW - 3);
    pen.clip();
    pen.strokeStyle = stripes;
    pen.lineWidth = 1.2;
    pen.beginPath();
    const end = Math.min(x + across, canvas.clientWidth) + ROW;
    for (let at = Math.max(from, GUTTER) - ROW; at < end; at += 5) {
      pen.moveTo(at, bottom);
      pen.lineTo(at + ROW, y);
    }
    pen.stroke();
    pen.restore();
  }

  function outline(span, width, ink) {
    const { x, y, across } = boxOf(span, width);
    pen.strokeStyle = ink;
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, y - 1, across + 2, ROW - 1);
  }

  function vertical(x, stroke) {
    pen.strokeStyle = stroke;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x, 16);
    pen.lineTo(x, height);
    pen.stroke();
  }

  function boxOf(span, width) {
    const x = axis.x(span.start, width);
    return { x, y: span.place.top + span.row * ROW, across: Math.max(1, axis.x(span.end, width) - x - 1) };
  }

  function fitted(text, room) {
    if (pen.measureText(text).width <= room) return text;
    const kept = Math.floor(text.length * room / pen.measureText(text).width) - 1;
    return kept > 2 ? `${text.slice(0, kept)}…` : "";
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top, width: box.width };
  }

  // The nearest span of the row under the pointer, if it is within three pixels.
  function spanAt({ x, y, width }) {
    let best = null, nearest = 3;
    for (const span of spans) {
      const box = boxOf(span, width);
      if (y < box.y || y > box.y + ROW) continue;
      const distance = Math.max(box.x - x, x - box.x - box.across, 0);
      if (distance < nearest) [best, nearest] = [span, distance];
    }
    return best;
  }

  function tell(span, x, y) {
    showTooltip(x, y, span.name, [
      ["work", span.work, span.work],
      ["module", span.module || "none"],
      ["line", span.line || "unknown"],
      ["takes", secondsText(span.end - span.start)],
      ["runs", `×${span.trips}`],
      ...(span.trips > 1 ? [["in a step", secondsText((span.end - span.start) * span.trips)]] : []),
      ["waited for", isWaitedFor(span) ? `${secondsText(span.exposed)}${span.trips > 1 ? " each time" : ""}` : "none"],
    ]);
  }

  canvas.addEventListener("pointermove", (event) => {
    const place = at(event);
    if (drag) drag[1] = place.x;
    chosen = spanAt(place);
    axis.point(place.x >= GUTTER && place.x <= place.width - MARGIN ? axis.seconds(place.x, place.width) : null);
    if (chosen) tell(chosen, event.clientX, event.clientY); else hideTooltip();
  });
  canvas.addEventListener("pointerleave", () => {
    chosen = null;
    hideTooltip();
    axis.point(null);
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = [at(event).x, at(event).x];
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => {
    if (!drag) return;
    const [from, to] = drag.map((x) => axis.seconds(x, canvas.clientWidth)).sort((a, b) => a - b);
    if (Math.abs(drag[1] - drag[0]) > 4) axis.show(from, to);
    drag = null;
    axis.redraw();
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("dblclick", () => axis.show(0, axis.end));
  canvas.addEventListener("wheel", (event) => {
    if (axis.isWhole && event.deltaY > 0) return; // nothing more to see: let the page scroll
    event.preventDefault();
    const { x, width } = at(event);
    const aside = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const shift = event.deltaX / width * (axis.to - axis.from);
    if (aside) axis.show(axis.from + shift, axis.to + shift);
    else axis.zoom(axis.seconds(x, width), Math.exp(event.deltaY / 400));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") axis.show(0, axis.end);
    if (!step || !spans.length) return;
    event.preventDefault();
    const next = chosen ? spans.indexOf(chosen) + step : 0;
    chosen = spans[Math.min(spans.length - 1, Math.max(0, next))];
    if (chosen.start < axis.from || chosen.end > axis.to) {
      const half = (axis.to - axis.from) / 2, middle = (chosen.start + chosen.end) / 2;
      axis.show(middle - half, middle + half);
    }
    axis.redraw();
    const box = canvas.getBoundingClientRect(), { x, y } = boxOf(chosen, box.width);
    tell(chosen, box.left + x, box.top + y + ROW);
  });
  return spans.length;
}
