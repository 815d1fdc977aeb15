// Shows values at the pointer and zooms into an interval of time: drag over it, double-click to reset.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const FRAME = /^M0(?:\.5)?,0(?:\.5)?h([\d.]+)v([\d.]+)h/;

  const made = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return parent.appendChild(element);
  };
  const corners = (path) =>
    [...path.getAttribute("d").matchAll(/[ML](-?[\d.e-]+),(-?[\d.e-]+)/g)].map((match) => [+match[1], +match[2]]);
  const place = (tick) => +/translate\((-?[\d.]+)/.exec(tick.getAttribute("transform") || "translate(0")[1];

  // The plots of a chart with their lines, in drawing order.
  function plotsOf(svg, values) {
    let next = 0;
    const plots = [];
    for (const ground of svg.querySelectorAll("path.background")) {
      const size = FRAME.exec(ground.getAttribute("d"));
      const inside = ground.nextElementSibling;
      if (!size || !inside || !inside.querySelector(":scope > .role-axis")) continue;
      const lines = [];
      for (const path of inside.querySelectorAll(".mark-line path")) {
        const points = corners(path), series = values[next++];
        if (series && series.x.length === points.length) {
          lines.push({ points, series, path });
        }
      }
      plots.push({ group: ground.parentNode, inside, wide: +size[1], high: +size[2], lines });
    }
    return plots;
  }

  // Moves the marks of a plot into a group that can be scaled and clipped.
  function gather(plot, name) {
    plot.clip = name;
    const cut = made("clipPath", { id: name }, plot.group);
    made("rect", { x: 0, y: -2, width: plot.wide, height: plot.high + 4 }, cut);
    plot.clipped = made("g", {}, plot.inside);
    plot.marks = made("g", {}, plot.clipped);
    for (const part of [...plot.inside.children]) {
      if (part !== plot.clipped && !/role-(axis|legend|title)/.test(part.getAttribute("class"))) {
        plot.marks.append(part);
      }
    }
  }

  function watch(figure, svg, values, name) {
    const plots = plotsOf(svg, values);
    if (!plots.length) return;
    const box = figure.querySelector(".values");
    const shown = { from: 0, to: null };
    let start = null;

    for (const plot of plots) {
      plot.cross = made("line", { y1: 0, y2: plot.high, class: "cross", visibility: "hidden" }, plot.group);
      plot.axis = timeAxis(plot);
    }
    const canWiden = plots.every((plot) => plot.axis);
    if (canWiden) plots.forEach((plot, index) => gather(plot, `${name}-${index}`));

    // The plot at the pointer, and the position in it.
    function under(event) {
      for (const plot of plots) {
        const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(
          plot.group.getScreenCTM().inverse()
        );
        if (at.x >= 0 && at.x <= plot.wide && at.y >= 0 && at.y <= plot.high) return { plot, x: at.x };
      }
      return null;
    }
    const scale = (plot) => plot.wide / ((shown.to === null ? plot.wide : shown.to) - shown.from);

    function hide() {
      box.hidden = true;
      for (const plot of plots) plot.cross.setAttribute("visibility", "hidden");
    }

    function showValues(event) {
      const here = under(event);
      if (!here) return hide();
      const rows = [];
      let head = "", seen = null;
      // plots over the same time are shown together
      const x = here.x / scale(here.plot) + shown.from;
      for (const line of (canWiden ? plots : [here.plot]).flatMap((plot) => plot.lines)) {
        let best = 0;
        line.points.forEach((point, index) => {
          if (Math.abs(point[0] - x) < Math.abs(line.points[best][0] - x)) best = index;
        });
        if (!line.points.length || Math.abs(line.points[best][0] - x) * scale(here.plot) > 24) continue;
        if (seen === null) seen = line.points[best][0];
        head = head || line.series.x[best];
        rows.push([getComputedStyle(line.path).stroke, line.series.name, line.series.y[best]]);
      }
      const mark = event.target.closest("[aria-label][role='graphics-symbol']");
      if (!rows.length && mark && !mark.matches(".role-axis, .role-legend")) {
        rows.push([getComputedStyle(mark).fill, mark.getAttribute("aria-label"), ""]);
      }
      if (!rows.length) return hide();
      for (const plot of plots) {
        const isSame = plot.wide === here.plot.wide && canWiden;
        const at = seen === null ? null : (seen - shown.from) * scale(here.plot);
        if (at === null || !(isSame || plot === here.plot)) plot.cross.setAttribute("visibility", "hidden");
        else {
          plot.cross.setAttribute("visibility", "visible");
          plot.cross.setAttribute("x1", at);
          plot.cross.setAttribute("x2", at);
        }
      }
      box.replaceChildren();
      if (head) box.appendChild(document.createElement("b")).textContent = head;
      for (const [color, name, value] of rows) {
        const row = box.appendChild(document.createElement("div"));
        const key = row.appendChild(document.createElement("i"));
        key.style.background = color;
        row.append(value ? `${name}: ${value}` : name);
      }
      box.hidden = false;
      const around = figure.getBoundingClientRect();
      const left = event.clientX - around.left, room = around.width - box.offsetWidth;
      box.style.left = `${Math.max(0, Math.min(left + 14, room))}px`;
      box.style.top = `${event.clientY - around.top + 18}px`;
    }

    function widen(from, to) {
      shown.from = from;
      shown.to = to;
      for (const plot of plots) {
        const ratio = scale(plot);
        if (to === null) {
          plot.marks.removeAttribute("transform");
          plot.clipped.removeAttribute("clip-path");
        } else {
          plot.marks.setAttribute("transform", `translate(${-from * ratio},0) scale(${ratio},1)`);
          plot.clipped.setAttribute("clip-path", `url(#${plot.clip})`);
        }
        plot.axis.show(from, ratio);
      }
      svg.classList.toggle("widened", to !== null);
      hide();
    }

    svg.addEventListener("pointermove", (event) => {
      if (start) {
        const here = under(event);
        if (here) {
          start.band.setAttribute("x", Math.min(start.x, here.x));
          start.band.setAttribute("width", Math.abs(here.x - start.x));
          start.last = here.x;
        }
        return;
      }
      showValues(event);
    });
    svg.addEventListener("pointerleave", () => !start && hide());
    svg.addEventListener("pointerdown", (event) => {
      const here = under(event);
      if (event.pointerType !== "mouse") return showValues(event);
      if (!here || !canWiden || event.button) return;
      const band = made("rect", { y: 0, height: here.plot.high, width: 0, class: "band" }, here.plot.group);
      start = { x: here.x, last: here.x, band, plot: here.plot };
      event.preventDefault();
    });
    window.addEventListener("pointerup", () => {
      if (!start) return;
      const { x, last, band, plot } = start;
      start = null;
      band.remove();
      if (Math.abs(x - last) < 6) return;
      const ratio = scale(plot), first = shown.from;
      widen(first + Math.min(x, last) / ratio, first + Math.max(x, last) / ratio);
    });
    svg.addEventListener("dblclick", () => canWiden && widen(0, null));
    if (canWiden) figure.classList.add("widens");
  }

  // A linear horizontal axis, which can show an interval of itself.
  function timeAxis(plot) {
    for (const axis of plot.inside.querySelectorAll(":scope > .role-axis")) {
      if (!/^X-axis .*for a linear scale/.test(axis.getAttribute("aria-label") || "")) continue;
      const labels = [...axis.querySelectorAll(".role-axis-label text")];
      const ticks = [...axis.querySelectorAll(".role-axis-tick line")];
      const known = labels.map((label) => [place(label), Number(label.textContent.replaceAll(",", ""))]);
      if (known.length < 2 || known.some((tick) => Number.isNaN(tick[1]))) return null;
      const [first, last] = [known[0], known[known.length - 1]];
      const each = (last[1] - first[1]) / (last[0] - first[0]);
      const value = (at) => first[1] + (at - first[0]) * each;
      const added = [];
      const show = (from, ratio) => {
        while (added.length) added.pop().remove();
        const whole = ratio === 1 && from === 0;
        for (const mark of [...labels, ...ticks]) mark.style.display = whole ? "" : "none";
        if (whole) return;
        const low = value(from), high = value(from + plot.wide / ratio);
        const rough = (high - low) / 6, power = 10 ** Math.floor(Math.log10(rough));
        const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
        for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) {
          const at = ((tick - low) / (high - low)) * plot.wide;
          const label = labels[0].cloneNode(true), line = ticks[0].cloneNode(true);
          label.style.display = line.style.display = "";
          label.setAttribute("text-anchor", "middle");
          const below = /,\s*(-?[\d.]+)\)/.exec(labels[0].getAttribute("transform"))[1];
          label.setAttribute("transform", `translate(${at},${below})`);
          line.setAttribute("transform", `translate(${at},0)`);
          label.textContent = Number(tick.toPrecision(8)).toLocaleString("en-US", { maximumFractionDigits: 6 });
          labels[0].parentNode.append(label);
          ticks[0].parentNode.append(line);
          added.push(label, line);
        }
      };
      return { show };
    }
    return null;
  }

  document.querySelectorAll("figure").forEach((figure, number) => {
    const data = figure.querySelector("script[type='application/json']");
    const values = data ? JSON.parse(data.textContent) : [];
    const box = figure.appendChild(document.createElement("div"));
    box.className = "values";
    box.hidden = true;
    figure.querySelectorAll("svg").forEach((svg, place) => watch(figure, svg, values, `plot-${number}-${place}`));
  });
})();
