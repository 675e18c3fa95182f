"""The page: that it holds the figures, that nothing in a report can break out of it, that its scripts run."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plan.reports import LAYERS, many_spans, report

from wholestep.plan import units
from wholestep.plan.page import page, write_page
from wholestep.plan.report import Report

CHROMIUM = shutil.which("chromium")
HOSTILE = "</script><script>document.body.dataset.broken=1</script><img src=x onerror=alert(1)>&\"'<!--$title"

# Goes to the first span by key, hovers over the memory, zooms by dragging, back, and by the wheel, sorts, and leaves
# what came of it in the body's attributes. Draws at once: a browser without a window may never reach its next frame.
PROBE = """
window.requestAnimationFrame = (draw) => { draw(); };
const told = document.body.dataset, tip = document.getElementById("tooltip");
const canvas = document.getElementById("schedule"), memory = document.getElementById("memory");
canvas.setPointerCapture = () => {};
const send = (element, type, x, y) => {
  const box = element.getBoundingClientRect();
  const where = { clientX: box.left + x * box.width, clientY: box.top + y, pointerId: 1, bubbles: true };
  element.dispatchEvent(new PointerEvent(type, where));
};
canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
told.span = tip.textContent;
send(memory, "pointermove", 0.4, 50);
told.memory = tip.textContent;
for (const [type, x] of [["pointerdown", 0.4], ["pointermove", 0.6], ["pointerup", 0.6]]) send(canvas, type, x, 50);
told.zoomed = !document.getElementById("reset").disabled;
document.getElementById("reset").click();
told.whole = document.getElementById("reset").disabled;
canvas.dispatchEvent(new WheelEvent("wheel", { clientX: 600, deltaY: -200, cancelable: true }));
told.wheeled = !document.getElementById("reset").disabled;
const heading = [...document.querySelectorAll("th button")].find((it) => it.textContent === "of the step");
const first = () => heading.closest("table").tBodies[0].rows[0].textContent;
heading.click();
told.heaviest = first();
heading.click();
told.lightest = first();
"""


class Outline(HTMLParser):
    """Elements by tag, scripts' texts, and that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] == "script" else self.words).append(data)


def hostile() -> Report:
    """A report whose every text tries to break out."""
    plain = report(fit=False)
    return replace(
        plain,
        recipe=HOSTILE,
        overrides=(HOSTILE,),
        topology=HOSTILE,
        mesh=HOSTILE,
        options={HOSTILE: HOSTILE},
        versions={HOSTILE: HOSTILE},
        spans=tuple(replace(it, name=HOSTILE, module=HOSTILE, line=HOSTILE, lane=HOSTILE) for it in plain.spans),
        loops=tuple(replace(it, module=HOSTILE) for it in plain.loops),
        operators=tuple(replace(it, module=HOSTILE) for it in plain.operators),
        findings=(replace(plain.findings[0], kind=HOSTILE, what=HOSTILE, where=(HOSTILE,), mend=HOSTILE),),
        remedies=(replace(plain.remedies[0], override=HOSTILE),),
        traffic=(replace(plain.traffic[0], operation=HOSTILE, axes=(HOSTILE,)),),
        speed=replace(plain.speed, bound_by=HOSTILE, assumptions=(HOSTILE,)),
        memory=replace(
            plain.memory,
            largest=(replace(plain.memory.largest[0], shape=HOSTILE, module=HOSTILE, line=HOSTILE, name=HOSTILE),),
        ),
    )


def test_it_holds_the_figures():
    whole = report()
    words = " ".join(Outline(page(whole)).words)
    speed, memory = whole.speed, whole.memory
    for figure in (
        whole.recipe, "8 slices of tpu7x:4x4x8", "1,024 (2,048 devices)", whole.mesh, "libtpu", "0.0.42",
        f"{units.gib(memory.available - memory.needed)} free", units.gib(memory.needed), units.gib(memory.available),
        units.seconds(speed.expected), f"{units.seconds(speed.low)} to {units.seconds(speed.high)}",
        f"{speed.mfu:.1%}", f"{speed.tokens_per_second_per_chip:,.0f}", speed.bound_by, "not measured",
        *speed.assumptions, *whole.options, *(buffer.shape for buffer in memory.largest),
        *(finding.mend for finding in whole.findings), *(place for it in whole.findings for place in it.where),
        *(module.module for module in whole.operators), "reduce-scatter", "DCN",
    ):  # fmt: skip
        assert figure in words
    assert "layers: a shallow copy" not in words
    assert "Does not fit" not in words


def test_it_says_what_does_not_fit_and_what_is_shallow():
    short = report(fit=False, whole_layers=80)
    words = " ".join(Outline(page(short)).words)
    assert "Does not fit" in words
    assert f"{units.gib(short.memory.needed - short.memory.available)} short" in words
    assert f"All figures are of {LAYERS} of 80 layers" in words
    assert "layers.keep=nothing" in words


@pytest.mark.parametrize("case", [report(), hostile()], ids=["plain", "hostile"])
def test_it_needs_nothing_from_elsewhere_and_nothing_breaks_out(case: Report):
    text = page(case)
    outline = Outline(text)
    assert outline.open == []
    assert outline.tags.count("script") == 2
    assert outline.tags.count("h1") == 1
    assert not {"img", "link", "iframe", "object"} & set(outline.tags)
    assert not {"src", "href", "onerror"} & set(outline.attributes)
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    data = json.loads(outline.scripts[0])
    assert [span["name"] for span in data["spans"]] == [span.name for span in case.spans]
    assert data["memory"]["by_kind"]["activations"] == [it.by_kind["activations"] for it in case.memory.curve]


def test_a_report_without_anything_is_a_page_too():
    plain = report()
    empty = replace(
        plain, spans=(), loops=(), operators=(), findings=(), traffic=(), options={}, overrides=(),
        memory=replace(plain.memory, largest=(), curve=(), by_kind={}), speed=replace(plain.speed, assumptions=()),
    )  # fmt: skip
    assert Outline(page(empty)).open == []


def test_written_whole_and_without_leftovers(tmp_path: Path):
    path = tmp_path / "plan.html"
    path.write_text("older")
    write_page(report(), path)
    assert path.read_text(encoding="utf-8") == page(report())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(CHROMIUM is None, reason="chromium, which runs the page's scripts, is not on the path")
@pytest.mark.parametrize("case", [hostile(), many_spans(5000)], ids=["hostile", "five thousand spans"])
def test_the_scripts_run(case: Report, tmp_path: Path):
    path = tmp_path / "plan.html"
    path.write_text(page(case).replace("</body>", f'<script type="module">{PROBE}</script></body>'), encoding="utf-8")
    told = _attributes_of_body(_run_in_chromium(path, tmp_path))
    assert told["data-drawn"] == str(len(case.spans))
    assert "data-broken" not in told
    assert case.spans[0].name in told["data-span"]
    assert "waited fornone" in told["data-span"]
    assert "activations" in told["data-memory"]
    assert told["data-zoomed"] == told["data-whole"] == told["data-wheeled"] == "true"
    assert units.seconds(case.operators[0].seconds) in told["data-heaviest"]
    assert units.seconds(case.operators[-1].seconds) in told["data-lightest"]


def _run_in_chromium(path: Path, home: Path) -> str:
    """The page's document after its scripts; raises with what they printed if one of them failed."""
    flags = (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", f"--user-data-dir={home / 'chromium'}",
        "--window-size=1400,2200", "--virtual-time-budget=2000", "--enable-logging=stderr", "--dump-dom",
    )  # fmt: skip
    done = subprocess.run([str(CHROMIUM), *flags, path.as_uri()], capture_output=True, text=True, timeout=60)
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not errors
    return done.stdout


def _attributes_of_body(text: str) -> dict[str, str]:
    found: dict[str, str] = {}

    class Body(HTMLParser):
        def handle_starttag(self, tag, attributes):
            if tag == "body":
                found.update(attributes)

    Body().feed(text)
    return found
