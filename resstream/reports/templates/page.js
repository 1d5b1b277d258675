"use strict";
(() => {
  const { figures, templates } = JSON.parse(document.getElementById("figures").textContent);
  const places = [...document.querySelectorAll(".figure")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 640px)");
  const PRINT_WIDTH = 680;

  function draw(mode, width) {
    places.forEach((place, index) => {
      const figure = figures[index];
      const layout = { ...figure.layout, template: templates[mode] };
      if (width) layout.width = width;
      const drawn = Plotly.react(place, figure.data, layout, {
        responsive: true,
        displaylogo: false,
        displayModeBar: narrow.matches ? false : "hover",
        modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
        plotlyServerURL: "",
        scrollZoom: false,
      });
      // Without this a figure keeps the width that it had on paper.
      if (!width) drawn.then(() => Plotly.Plots.resize(place));
    });
  }
  const show = () => draw(dark.matches ? "dark" : "light");

  dark.addEventListener("change", show);
  narrow.addEventListener("change", show);
  addEventListener("beforeprint", () => draw("light", PRINT_WIDTH));
  addEventListener("afterprint", show);
  show();
})();
