// Where each span goes: lanes in order, and within a lane as many rows as run at once.

const ROW = 22, GAP = 10, HEAD = 38; // pixels: a row, between lanes, above the first

function laneOrder(name) {
  const place = ["compute", "SparseCore", "copies", "ICI", "DCN", "host"].findIndex((it) => name.startsWith(it));
  return place < 0 ? 9 : place;
}

// Lanes with `top` and `rows`, and spans with the `lane` they are drawn in and their `row`.
function arranged(spans) {
  const names = [...new Set(spans.map((span) => span.lane))].sort((a, b) => laneOrder(a) - laneOrder(b) || (a < b ? -1 : 1));
  const lanes = new Map(names.map((name) => [name, { name, top: 0, ends: [] }]));
  const placed = [...spans].sort((a, b) => a.start - b.start).map((span) => {
    const lane = lanes.get(span.lane);
    let row = lane.ends.findIndex((end) => end <= span.start + 1e-12);
    if (row < 0) row = lane.ends.length;
    lane.ends[row] = span.end;
    return { ...span, place: lane, row };
  });
  let top = HEAD;
  for (const lane of lanes.values()) {
    lane.top = top;
    top += Math.max(1, lane.ends.length) * ROW + GAP;
  }
  return { lanes: [...lanes.values()], spans: placed, height: top };
}

// Whether dark or light letters read better on a colour: by its relative luminance.
function inkOn(hex) {
  const [red, green, blue] = [1, 3, 5].map((at) => {
    const part = parseInt(hex.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.19 ? "#101317" : "#ffffff";
}
