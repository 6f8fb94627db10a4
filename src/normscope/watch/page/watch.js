"use strict";
(() => {
  // Names come from files: they are only ever set as text, never as HTML.
  const STATES = ["pending", "running", "finished", "diverged", "failed"];
  const COLOURS = ["#440154", "#414487", "#2a788e", "#22a884", "#7ad151"];
  const SVG = "http://www.w3.org/2000/svg";
  const root = document.documentElement;
  const board = document.getElementById("board");
  const tip = document.getElementById("tip");
  const parts = new Map(); // by name: { node, slot, update }

  const make = (tag, name = "", text = "") => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    node.textContent = text;
    return node;
  };
  const draw = (tag, attributes, text = "") => {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.textContent = text;
    return node;
  };
  const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const number = (value, digits = 3) => {
    if (value === null || value === undefined) return "not finite";
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(1) : String(Number(value.toPrecision(digits)));
  };
  const showTip = (text, event) => {
    tip.hidden = !text;
    setText(tip, text);
    const width = tip.offsetWidth;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(4, event.clientY - tip.offsetHeight - 10)}px`;
  };
  const hideTip = () => { tip.hidden = true; };

  // --- charts over steps

  const extent = (lists) => {
    let low = Infinity, high = -Infinity;
    for (const list of lists) for (const value of list) {
      if (value === null) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    return [low, high];
  };
  const scaleOf = (low, high, from, to, log) => {
    const of = log ? Math.log : (value) => value;
    const span = of(high) - of(low);
    return (value) => span > 0 ? from + (to - from) * (of(value) - of(low)) / span : (from + to) / 2;
  };
  const pathOf = (points) => {
    let path = "", pen = "M";
    for (const [x, y] of points) {
      if (y === null) { pen = "M"; continue; }
      path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = "L";
    }
    return path;
  };
  const chart = (svg, lines, { width, height, left }) => {
    const values = lines.flatMap((line) => [line.mean ?? [], line.low ?? [], line.high ?? []]);
    const [low, highest] = extent(values);
    const begun = lines.map((line) => (line.mean ?? line.high).find((value) => value !== null)).filter((value) => value > 0);
    const high = Math.min(highest, begun.length > 1 ? Math.max(low, 10 * Math.max(...begun)) : Infinity); // divergences leave the chart
    const [first, last] = extent(lines.map((line) => line.steps));
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    if (low > high) { svg.append(draw("text", { x: left, y: height / 2 }, "no finite value")); return null; }
    const log = low > 0 && high / low > 20;
    const bottom = height - 18;
    const x = scaleOf(first, last, left, width - 4, false);
    const y = scaleOf(low, high, bottom - 3, 6, log);
    svg.append(draw("path", { class: "frame", d: `M${left} 3V${bottom}H${width - 2}` }));
    const label = (text, atX, atY, anchor) => svg.append(draw("text", { x: atX, y: atY, "text-anchor": anchor }, text));
    label(`${high < highest ? "≥ " : ""}${number(high)}`, left - 4, high === low ? y(high) + 4 : 12, "end");
    if (high !== low) label(number(low), left - 4, bottom, "end");
    if (log) label("log", left - 4, (bottom + 14) / 2, "end");
    label(number(first, 6), left, height - 4, "start");
    if (last !== first) label(`step ${number(last, 6)}`, width - 2, height - 4, "end");
    const at = (list, index) => list[index] === null ? null : y(Math.min(list[index], high));
    lines.forEach((line, index) => {
      const colour = `c${(line.colour ?? index) % 8}`;
      if (line.low) {
        const up = line.steps.map((step, k) => [x(step), at(line.high, k)]);
        const down = line.steps.map((step, k) => [x(step), at(line.low, k)]);
        const whole = [...up, ...down.reverse()].filter((point) => point[1] !== null);
        if (whole.length > 2) svg.append(draw("path", { class: `band ${colour}`, d: `${pathOf(whole)}Z` }));
      }
      const middle = line.mean ?? line.high;
      const points = line.steps.map((step, k) => [x(step), at(middle, k)]);
      const kind = line.state === "running" ? "line now" : "line";
      svg.append(draw("path", { class: `${kind} ${colour}`, d: pathOf(points) }));
      const end = points.findLast((point) => point[1] !== null);
      if (end) svg.append(draw("circle", { class: `dot ${colour}`, cx: end[0], cy: end[1], r: 2.6 }));
    });
    return { x, y, width, high };
  };
  const nearest = (lines, scales, svg, event) => {
    const box = svg.getBoundingClientRect();
    const ratio = scales.width / box.width;
    const px = (event.clientX - box.left) * ratio, py = (event.clientY - box.top) * ratio;
    let best = null;
    for (const line of lines) {
      const middle = line.mean ?? line.high;
      line.steps.forEach((step, k) => {
        if (middle[k] === null) return;
        const away = Math.hypot(scales.x(step) - px, 0.5 * (scales.y(Math.min(middle[k], scales.high)) - py));
        if (best === null || away < best.away) best = { away, line, k };
      });
    }
    return best !== null && best.away < 40 ? best : null;
  };
  const startChart = (svg, title) => {
    let lines = [], scales = null;
    svg.addEventListener("pointermove", (event) => {
      const found = scales && nearest(lines, scales, svg, event);
      if (!found) { hideTip(); return; }
      const { line, k } = found;
      const range = line.low ? ` (${number(line.low[k])} to ${number(line.high[k])}, ${line.over})` : "";
      const value = line.mean ? number(line.mean[k], 4) : "";
      showTip(`${line.label ? `${line.label}: ` : ""}step ${number(line.steps[k], 6)}, ${title} ${value}${range}`, event);
    });
    svg.addEventListener("pointerleave", hideTip);
    return (given, size) => { lines = given; scales = chart(svg, given, size); };
  };

  // --- phase diagrams

  const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const STOPS = COLOURS.map(rgb);
  const shade = (share) => {
    const at = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
    const low = Math.min(Math.floor(at), STOPS.length - 2);
    const mixed = STOPS[low].map((value, k) => Math.round(value + (STOPS[low + 1][k] - value) * (at - low)));
    return `rgb(${mixed.join(",")})`;
  };
  const LEFT = 58, BOTTOM = 40, TOP = 6, RIGHT = 10;

  const startGrid = (canvas, legend) => {
    let axes = null, cells = new Map(), place = null;
    const isDense = () => cells.size * 2 > axes.rates.length * axes.values.length;
    const layout = (width) => {
      const [columns, rows] = [axes.rates.length, axes.values.length];
      const inner = width - LEFT - RIGHT;
      const high = Math.min(inner * 0.75, 380, Math.max(46, 56 * rows));
      const dense = isDense();
      const along = (values, from, to) => values[0] > 0
        ? scaleOf(values[0], values.at(-1), from, to, true) : scaleOf(values[0], values.at(-1), from, to, false);
      const x = along(axes.rates, LEFT + 8, LEFT + inner - 8);
      const y = along(axes.values, TOP + high - 8, TOP + 8);
      return {
        inner, high, dense, columns, rows,
        left: (column) => dense ? LEFT + inner * column / columns : x(axes.rates[column]),
        top: (row) => dense ? TOP + high * (rows - 1 - row) / rows : y(axes.values[row]),
      };
    };
    const lossRange = () => {
      const [low, high] = extent([[...cells.values()].filter((cell) => cell.state === 2 && cell.loss > 0).map((cell) => cell.loss)]);
      return [low, Math.min(high, low * 100)]; // beyond a factor of 100 the colour stays
    };
    const colourOf = (style, low, high) => {
      const flat = STATES.map((state) => style.getPropertyValue(`--${state}`));
      const span = Math.log(high / low);
      return (cell) => cell.state !== 2 || cell.loss === null || !(low > 0) ? flat[cell.state]
        : shade(span > 0 ? Math.log(Math.max(cell.loss, low) / low) / span : 0);
    };
    const ticks = (values, most) => {
      const every = Math.ceil(values.length / most);
      return values.map((value, index) => [value, index]).filter(([, index]) => index % every === 0);
    };
    // light-dark() is resolved by the browser for colours of elements only
    const resolved = () => {
      const style = getComputedStyle(root), probe = make("i");
      canvas.parentNode.append(probe);
      const found = { getPropertyValue: (name) => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; } };
      return { style: found, font: style.fontFamily, done: () => probe.remove() };
    };
    const paint = () => {
      const width = canvas.clientWidth;
      if (axes === null || width === 0) return;
      place = layout(width);
      const ratio = devicePixelRatio || 1, height = place.high + TOP + BOTTOM;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
      const pen = canvas.getContext("2d"), colours = resolved();
      pen.scale(ratio, ratio);
      const [low, high] = lossRange();
      const colour = colourOf(colours.style, low, high);
      const [w, h] = [place.inner / place.columns, place.high / place.rows];
      pen.strokeStyle = colours.style.getPropertyValue("--quiet"); // dark points on a dark page
      pen.lineWidth = 0.5;
      const gap = place.dense && w > 5 && h > 5 ? 1 : 0;
      for (const [index, cell] of cells) {
        const column = index % place.columns, row = Math.floor(index / place.columns);
        pen.fillStyle = colour(cell);
        if (place.dense) pen.fillRect(place.left(column), place.top(row), w - gap + (gap ? 0 : 0.4), h - gap + (gap ? 0 : 0.4));
        else { pen.beginPath(); pen.arc(place.left(column), place.top(row), 4.5, 0, 7); pen.fill(); pen.stroke(); }
      }
      pen.fillStyle = colours.style.getPropertyValue("--quiet");
      pen.font = `11px ${colours.font}`;
      pen.textAlign = "center";
      const fit = Math.max(2, Math.floor(place.inner / 58));
      for (const [value, index] of ticks(axes.rates, fit)) pen.fillText(number(value), place.left(index) + (place.dense ? w / 2 : 0), TOP + place.high + 15);
      pen.fillText("learning rate", LEFT + place.inner / 2, TOP + place.high + 33);
      pen.textAlign = "right";
      if (axes.setting !== null) {
        for (const [value, index] of ticks(axes.values, Math.max(2, Math.floor(place.high / 26)))) pen.fillText(number(value), LEFT - 6, place.top(index) + (place.dense ? h / 2 : 0) + 4);
        pen.save();
        pen.translate(11, TOP + place.high / 2);
        pen.rotate(-Math.PI / 2);
        pen.textAlign = "center";
        pen.fillText(axes.setting.slice(0, 40), 0, 0);
        pen.restore();
      }
      colours.done();
      setText(legend.low, low > 0 && low < Infinity ? number(low) : "");
      setText(legend.high, low > 0 && low < Infinity ? number(high) : "");
      legend.scale.hidden = !(low > 0 && low < Infinity);
      const present = new Set();
      for (const cell of cells.values()) present.add(STATES[cell.state]);
      for (const [state, item] of Object.entries(legend.states)) item.hidden = !present.has(state);
    };
    const cellAt = (event) => {
      const box = canvas.getBoundingClientRect();
      const [px, py] = [event.clientX - box.left, event.clientY - box.top];
      if (place.dense) {
        const column = Math.floor((px - LEFT) / place.inner * place.columns);
        const row = place.rows - 1 - Math.floor((py - TOP) / place.high * place.rows);
        return column < 0 || column >= place.columns || row < 0 || row >= place.rows ? null : row * place.columns + column;
      }
      let best = null, least = 12;
      for (const index of cells.keys()) {
        const away = Math.hypot(place.left(index % place.columns) - px, place.top(Math.floor(index / place.columns)) - py);
        if (away < least) [best, least] = [index, away];
      }
      return best;
    };
    canvas.addEventListener("pointermove", (event) => {
      const index = place === null ? null : cellAt(event);
      const cell = cells.get(index);
      if (!cell) { hideTip(); return; }
      const setting = axes.setting === null ? "" : `${axes.setting} ${number(axes.values[Math.floor(index / place.columns)])}, `;
      const loss = cell.state === 2 && cell.loss !== null ? `, test loss ${number(cell.loss)}` : "";
      const runs = cell.runs > 1 ? `, ${cell.done} of ${cell.runs} seeds` : "";
      showTip(`${setting}learning rate ${number(axes.rates[index % place.columns])}: ${STATES[cell.state]}${loss}${runs}`, event);
    });
    canvas.addEventListener("pointerleave", hideTip);
    new ResizeObserver(paint).observe(canvas.parentNode);
    repaints.add(paint);
    return {
      stop: () => repaints.delete(paint),
      update: (news) => {
        if (news.axes) { axes = news.axes; cells = new Map(); }
        news.states.forEach((state, k) => {
          const runs = news.runs ? news.runs[k] : 1;
          const done = news.done ? news.done[k] : Number(state > 1);
          cells.set(news.cells ? news.cells[k] : k, { state, loss: news.losses[k], runs, done });
        });
        paint();
      },
    };
  };

  // --- parts of the page

  const repaints = new Set();
  const legendItem = (name, text) => {
    const item = make("li");
    item.append(make("i", name), text);
    return item;
  };

  const BUILDERS = {
    store: () => {
      const node = make("section", "store");
      const [title, words, problem, slot] = [make("h2"), make("p", "words"), make("p", "problem"), make("div")];
      problem.setAttribute("role", "alert");
      node.append(title, words, problem, slot);
      return { node, slot, update: (part) => {
        setText(title, part.title);
        title.title = part.path;
        setText(words, part.words);
        words.dataset.work = part.at_work ? "yes" : "no";
        problem.hidden = !part.problem;
        setText(problem, part.problem);
      } };
    },
    experiment: () => {
      const node = make("article", "experiment");
      const [title, words, bar, key] = [make("h3"), make("p", "headline"), make("div", "bar"), make("ul", "key")];
      const [running, failed, note, slot] = [make("ul", "list"), make("details"), make("p", "words"), make("div", "slot")];
      const order = ["finished", "diverged", "failed", "running", "pending"];
      const spans = Object.fromEntries(order.map((state) => [state, make("span", state)]));
      const items = Object.fromEntries(order.map((state) => [state, legendItem(state, "")]));
      bar.append(...Object.values(spans));
      bar.setAttribute("role", "progressbar");
      key.append(...Object.values(items));
      failed.append(make("summary"), make("dl"));
      node.append(title, words, bar, key, failed, note, slot, running);
      return { node, slot, update: (part) => {
        setText(title, part.title);
        setText(words, part.words);
        const total = Object.values(part.counts).reduce((sum, count) => sum + count, 0);
        const ended = total - part.counts.pending - part.counts.running;
        for (const state of order) {
          spans[state].style.flexGrow = part.counts[state];
          items[state].hidden = part.counts[state] === 0;
          setText(items[state].lastChild, `${part.counts[state]} ${state}`);
        }
        bar.setAttribute("aria-valuenow", total ? Math.round(100 * ended / total) : 0);
        bar.setAttribute("aria-label", part.words);
        running.hidden = part.running.length === 0;
        running.replaceChildren(...part.running.map((text) => make("li", "", `running: ${text}`)));
        failed.hidden = part.failures.length === 0;
        setText(failed.firstChild, `${part.counts.failed} failed`);
        failed.lastChild.replaceChildren(...part.failures.flatMap((each) => [make("dt", "", each.record), make("dd", "", each.error)]));
        setText(note, part.note);
        note.hidden = !part.note;
      } };
    },
    grid: () => {
      const node = make("figure", "grid");
      const [title, words, canvas, key] = [make("h4"), make("figcaption"), make("canvas"), make("ul", "key")];
      const scale = make("li", "", "test loss ");
      const [low, high] = [make("span"), make("span")];
      scale.append(low, make("span", "scale"), high);
      const states = Object.fromEntries(["diverged", "running", "pending", "failed"].map((state) => [state, legendItem(state, state)]));
      key.append(scale, ...Object.values(states));
      canvas.setAttribute("role", "img");
      node.append(title, words, canvas, key);
      const grid = startGrid(canvas, { low, high, scale, states });
      return { node, stop: grid.stop, update: (part) => {
        setText(title, part.title);
        title.hidden = !part.title;
        setText(words, part.words);
        canvas.setAttribute("aria-label", `Phase diagram: ${part.words}`);
        if (part.cells) grid.update(part.cells);
      } };
    },
    curves: () => {
      const node = make("figure", "curves");
      const [words, svg, key] = [make("figcaption", "", "Loss of the latest trainings, diverged ones last"), draw("svg", { role: "img" }), make("ul", "key")];
      node.append(words, svg, key);
      const show = startChart(svg, "loss");
      const paint = () => show(lines, { width: Math.max(300, node.clientWidth || 480), height: 260, left: 48 });
      let lines = [];
      new ResizeObserver(paint).observe(node);
      return { node, update: (part) => {
        lines = part.lines;
        svg.setAttribute("aria-label", `Loss over the steps of ${lines.length} trainings`);
        key.replaceChildren(...lines.map((line, index) => legendItem(`c${index % 8}`, `${line.label}${line.state === "finished" ? "" : ` (${line.state})`}`)));
        paint();
      } };
    },
    scope: () => {
      const node = make("figure", "scope");
      const [title, words, panels] = [make("h4"), make("figcaption"), make("div", "panels")];
      const gauge = make("div", "gauge"), track = make("div", "track"), fill = make("div", "fill");
      const said = make("p"), shown = new Map();
      track.append(fill, make("div", "edge"));
      track.setAttribute("role", "meter");
      gauge.append(track, said);
      node.append(title, words, gauge, panels);
      const panelOf = (variable, name) => {
        if (!shown.has(variable)) {
          const [box, head, last] = [make("div"), make("p"), make("b")];
          const svg = draw("svg", { role: "img", "aria-label": `${name} over the steps` });
          head.append(make("span", "", name), last);
          box.append(head, svg);
          panels.append(box);
          shown.set(variable, { last, svg, line: null, show: startChart(svg, name) });
        }
        return shown.get(variable);
      };
      const paint = () => { // at the true width, so that labels keep their size
        for (const { line, svg, show } of shown.values()) show([line], { width: Math.max(120, svg.clientWidth), height: 110, left: 44 });
      };
      new ResizeObserver(paint).observe(panels);
      return { node, update: (part) => {
        setText(title, part.title);
        setText(words, part.words);
        gauge.hidden = !part.gauge;
        if (part.gauge) {
          const share = part.gauge.share ?? (part.gauge.over ? 2 : 0);
          fill.style.width = `${Math.min(100, 80 * share)}%`;
          gauge.toggleAttribute("data-over", part.gauge.over);
          track.setAttribute("aria-label", part.gauge.words);
          track.setAttribute("aria-valuenow", number(share));
          setText(said, part.gauge.words);
        }
        part.panels.forEach((line, index) => {
          const panel = panelOf(line.variable, line.title);
          const middle = line.mean ?? line.high;
          setText(panel.last, middle.length ? number(middle.at(-1)) : "");
          panel.line = { ...line, colour: index > 0 && line.low ? 2 : 0 };
        });
        paint();
      } };
    },
  };

  const parentOf = (name) => name.includes(".") ? parts.get(name.slice(0, name.lastIndexOf("."))).slot : board;
  const receive = (message) => {
    for (const [name, part] of parts) {
      if (message.order.includes(name)) continue;
      part.stop?.();
      part.node.remove();
      parts.delete(name);
    }
    document.getElementById("empty").hidden = true;
    const news = new Map(message.parts.map((part) => [part.name, part]));
    const places = new Map(), begun = board.children.length - board.querySelectorAll(":scope > .store").length;
    for (const name of message.order) {
      const part = news.get(name);
      if (!parts.has(name)) parts.set(name, BUILDERS[part.kind]());
      const { node, update } = parts.get(name), slot = parentOf(name);
      const at = places.get(slot) ?? (slot === board ? begun : 0);
      if (slot.children[at] !== node) slot.insertBefore(node, slot.children[at] ?? null);
      places.set(slot, at + 1);
      if (part) update(part);
      if (part?.counts) parts.get(name).counts = part.counts;
    }
    const counts = message.order.map((name) => parts.get(name).counts).filter(Boolean); // of all, changed or not
    const total = counts.reduce((sum, each) => sum + Object.values(each).reduce((a, b) => a + b, 0), 0);
    const open = counts.reduce((sum, each) => sum + each.pending + each.running, 0);
    document.title = total ? `${Math.floor(100 * (total - open) / total)} % · normscope watch` : "normscope watch";
  };

  // --- the connection and the theme

  const connection = document.getElementById("connection");
  let heard = Date.now();
  const connected = (state, text) => {
    if (connection.dataset.state !== state) connection.dataset.state = state;
    setText(connection, text);
  };
  const alive = () => { heard = Date.now(); connected("live", "live"); };
  const source = new EventSource("events");
  source.onmessage = (event) => { alive(); receive(JSON.parse(event.data)); };
  source.addEventListener("alive", alive);
  source.onerror = () => connected("lost", source.readyState === EventSource.CLOSED
    ? "the server has ended; reload the page after a new start" : "the connection is lost; trying again");
  setInterval(() => {
    if (Date.now() - heard > 25000) connected("lost", "no news from the server; is it suspended?");
  }, 5000);

  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => root.dataset.theme ?? (system.matches ? "dark" : "light");
  const themed = () => {
    setText(button, theme() === "dark" ? "Light theme" : "Dark theme");
    for (const paint of repaints) paint();
  };
  button.addEventListener("click", () => { root.dataset.theme = theme() === "dark" ? "light" : "dark"; themed(); });
  system.addEventListener("change", themed);
  themed();
})();
