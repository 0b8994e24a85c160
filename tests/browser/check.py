"""Reads a report with the mouse, in Chromium without a network: hovers, clicks, chooses, zooms.

    check.py REPORT.html [FOLDER]

At 1280 and at 390 pixels, light and dark, nothing may be wider than the page, every figure must be drawn, and no script may
fail or ask for another file. With FOLDER, a picture of each is written there. Exits with 1 and what is wrong.
"""

import json
import pathlib
import shutil
import sys

from playwright.sync_api import TimeoutError, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def figure(page, selector):
    """The part of the page that plotly.js has drawn there, scrolled into view."""
    plot = page.locator(selector).first
    plot.scroll_into_view_if_needed()
    return plot


def comes(page, condition, problems, problem):
    """Waits until the page fulfils a condition in JavaScript."""
    try:
        page.wait_for_function(condition, timeout=30_000)
    except TimeoutError:
        problems.append(problem)


def use(page, problems):
    """Hovers, clicks the legend, zooms, and chooses another axis and link."""
    chart = "figure.chart:has(select.against)"
    box = figure(page, f"{chart} .plot").bounding_box()
    data = page.evaluate(f"document.querySelector('{chart} .plot').calcdata.map(t => t.map(p => [p.x, p.y]))")
    place = page.evaluate(f"""() => {{
        const plot = document.querySelector('{chart} .plot'), full = plot._fullLayout;
        const trace = plot.calcdata.find(t => t[0].trace.showlegend !== false && t[0].trace.hoverinfo !== 'skip');
        const point = trace[Math.floor(trace.length / 2)];
        return [full._size.l + full.xaxis.c2p(point.x), full._size.t + full.yaxis.c2p(point.y)];
    }}""")
    page.mouse.move(box["x"] + place[0], box["y"] + place[1])
    shown = f"[...document.querySelectorAll('{chart} .hoverlayer .hovertext')].map(t => t.textContent).join(' ')"
    comes(page, f"/[0-9]/.test({shown})", problems, "no value under the mouse")
    lines = f"{chart} .scatterlayer .trace"
    before = page.locator(lines).count()
    count = f"document.querySelectorAll('{lines}').length"
    page.locator(f"{chart} .legendtoggle").first.click()
    comes(page, f"{count} < {before}", problems, "a click on the legend hides no arm")
    # Two clicks in quick succession are a double one.
    page.wait_for_timeout(600)
    page.locator(f"{chart} .legendtoggle").first.click()
    comes(page, f"{count} == {before}", problems, "another click does not show it again")
    layout = f"document.querySelector('{chart} .plot')._fullLayout"
    axis = lambda of: page.evaluate(f"JSON.stringify({layout}.{of})")
    other = lambda of, value, problem: comes(
        page, f"JSON.stringify({layout}.{of}) != {json.dumps(value)}", problems, problem)
    whole = axis("xaxis.range")
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 260, steps=5)
    page.mouse.up()
    other("xaxis.range", whole, "dragging does not zoom")
    kind = axis("yaxis.type")
    page.locator(f"{chart} input[name=yaxis]").first.click()
    other("yaxis.type", kind, "the axis does not change to logarithmic")
    select = page.locator(f"{chart} select.against").first
    title = axis("xaxis.title.text")
    select.select_option(index=1)
    other("xaxis.title.text", title, "another choice shows the same axis")
    if not data:
        problems.append("there is no data")
    choice = page.locator(".choice").first
    if choice.count() and choice.locator("option").count() > 1:
        choice.locator("select").select_option(index=1)
        if choice.locator("section:visible").count() != 1 or choice.locator("section").nth(1).is_hidden():
            problems.append("another link shows the same table")


def main(arguments):
    report = pathlib.Path(arguments[0]).resolve()
    pictures = pathlib.Path(arguments[1]) if len(arguments) > 1 else None
    problems = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                context = browser.new_context(
                    viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
                page = context.new_page()
                name = f"{width} {scheme}"
                page.on("pageerror", lambda error, name=name: problems.append(f"{name}: {error}"))
                page.on("request", lambda request, name=name: request.url.startswith(("file:", "data:", "blob:")) or
                        problems.append(f"{name}: asks for {request.url}"))
                page.goto(report.as_uri(), timeout=120_000)
                drawings = "document.querySelectorAll('figure.chart').length > 0" \
                    " && [...document.querySelectorAll('figure.chart')].every(f => f.querySelector('.plot .main-svg'))"
                comes(page, drawings, problems, f"{name}: figures without a drawing")
                wide = page.evaluate("document.documentElement.scrollWidth")
                if wide > width:
                    problems.append(f"{name}: the page is {wide} pixels wide")
                charts, drawn = page.locator("figure.chart").count(), page.locator(".plot .main-svg").count()
                if not charts or drawn < charts:
                    problems.append(f"{name}: {drawn} drawings in {charts} figures")
                beyond = page.evaluate(
                    "[...document.querySelectorAll('.plot')].filter(p => p._fullLayout.yaxis.tickformat?.includes('p')"
                    " && p._fullLayout.yaxis.range[1] > 1).length")
                if beyond:
                    problems.append(f"{name}: {beyond} axes of accuracy go beyond 100 %")
                if pictures:
                    pictures.mkdir(parents=True, exist_ok=True)
                    page.screenshot(path=pictures / f"{width}-{scheme}.png", full_page=True)
                if width == 1280:
                    use(page, problems)
                context.close()
        browser.close()
    print("\n".join(problems) if problems else f"{report.name}: read with the mouse, light and dark, wide and narrow")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
