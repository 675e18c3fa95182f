// One box that says what is under the pointer or chosen by a key. Text goes in as text, never as markup.

const tooltip = document.getElementById("tooltip");

// Rows are [name, value, kind of colour or null]; the last one may be marked as a total.
function showTooltip(x, y, title, rows, total) {
  tooltip.replaceChildren();
  if (title) tooltip.append(made("strong", "", title));
  for (const [name, value, swatch] of rows) tooltip.append(tooltipRow(name, value, swatch));
  if (total) tooltip.append(tooltipRow(...total, null, "total"));
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
  const top = Math.min(y + 16, innerHeight - box.height - 8);
  tooltip.style.left = `${Math.max(8, left)}px`;
  tooltip.style.top = `${Math.max(8, top)}px`;
}

function hideTooltip() { tooltip.hidden = true; }

function tooltipRow(name, value, swatch, className = "") {
  const row = made("div", className);
  const label = made("span", "", name);
  if (swatch) label.prepend(swatchOf(swatch));
  row.append(label, made("span", "", value));
  return row;
}

function swatchOf(name) {
  const swatch = made("i", "swatch");
  swatch.style.background = `var(--${name.replaceAll(" ", "-")})`;
  return swatch;
}

function legend(id, names) {
  document.getElementById(id).append(...names.map((name) => {
    const key = made("span", "", name);
    key.prepend(swatchOf(name));
    return key;
  }));
}

function made(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}
