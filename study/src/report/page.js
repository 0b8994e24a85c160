// Draws each figure of the page with plotly.js from the data beside it, in the page's colours, light or dark.
const dark = matchMedia("(prefers-color-scheme: dark)");

function draw(box) {
  const against = box.querySelector("select.against");
  const sources = box.querySelectorAll("script");
  let text = sources[against ? against.selectedIndex : 0].textContent;
  if (dark.matches) for (const [light, other] of HUES) text = text.replaceAll(light, other);
  const { data, layout } = JSON.parse(text);
  const style = getComputedStyle(document.body);
  const colour = (name) => style.getPropertyValue(name).trim();
  for (const input of box.querySelectorAll("input")) {
    const axis = layout[input.name];
    // What another figure or axis began with is not what a reader chose.
    if (input.dataset.chosen) {
      if ((axis.type === "log") !== input.checked) delete axis.range;
      axis.type = input.checked ? "log" : "linear";
    }
    input.checked = axis.type === "log";
    Object.assign(axis, { gridcolor: colour("--rule"), linecolor: colour("--muted") });
    if (axis.type === "log" && axis.range) axis.dtick = axis.range[1] - axis.range[0] > 1.6 ? 1 : "D2";
    if (/[p%]$/.test(axis.tickformat || "") && axis.range?.[1] <= 1) axis.maxallowed = 1;
  }
  const plot = box.querySelector(".plot");
  const names = data.filter((trace) => trace.showlegend !== false).map((trace) => trace.name.length);
  const columns = Math.max(1, Math.floor(plot.clientWidth / (Math.max(...names, 1) * 7.5 + 50)));
  const rows = Math.ceil(names.length / columns);
  Object.assign(layout, {
    height: 400 + rows * 20,
    font: { color: colour("--ink"), size: 13, family: style.fontFamily },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    margin: { l: 60, r: 16, t: 12, b: 50 },
  });
  Object.assign(layout.legend, { y: -70 / 340, font: { size: 12 } });
  const image = { format: "svg", filename: sources[0].dataset.name };
  Plotly.react(plot, data, layout, { responsive: true, displaylogo: false, toImageButtonOptions: image });
}

for (const box of document.querySelectorAll("figure.chart")) {
  draw(box);
  box.addEventListener("change", (event) => {
    if (event.target.name) event.target.dataset.chosen = "yes";
    draw(box);
  });
  dark.addEventListener("change", () => draw(box));
}
for (const choice of document.querySelectorAll(".choice")) {
  const select = choice.querySelector("select");
  const show = () =>
    choice.querySelectorAll(":scope > section").forEach((part, place) => {
      part.hidden = place !== select.selectedIndex;
    });
  select.addEventListener("change", show);
  show();
}
