// Draws the pictures and makes tables sortable. `data-drawn` on the body says that it got to the end.

const data = JSON.parse(document.getElementById("data").textContent);
const ends = [...data.spans.map((span) => span.end), ...data.memory.at.slice(-1)];
const axis = new Axis(ends.reduce((a, b) => Math.max(a, b), 0));
const reset = document.getElementById("reset");

drawMemory(document.getElementById("memory"), data.memory, data.loops, axis);
const drawn = drawSchedule(document.getElementById("schedule"), data, axis);
axis.drawings.push(() => { reset.disabled = axis.isWhole; });
reset.addEventListener("click", () => axis.show(0, axis.end));
addEventListener("resize", () => axis.redraw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => axis.redraw());
document.querySelectorAll("table.sortable").forEach(makeSortable);
axis.drawings.forEach((draw) => draw());
document.body.dataset.drawn = drawn;

function makeSortable(table) {
  const headings = [...table.querySelectorAll("th")];
  headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
    const numbers = heading.classList.contains("number");
    const before = heading.getAttribute("aria-sort");
    const descending = before ? before === "ascending" : numbers;
    headings.forEach((it) => it.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const key = (row) => numbers ? +row.cells[column].dataset.value : row.cells[column].textContent;
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [one, other] = descending ? [key(b), key(a)] : [key(a), key(b)];
      return numbers ? one - other : one.localeCompare(other);
    });
    table.tBodies[0].append(...rows);
  }));
}
