
(() => {
  // A loss surface on a canvas: drag or arrow keys turn it, the pointer reads it, sliders cut it.
  const COLOURS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const HEIGHT = 0.62; // of the vertical axis, in widths of the others
  const TURN = 0.012; // radians for each pixel
  const NEAR = 24; // pixels

  const mixed = (share) => {
    const at = Math.min(Math.max(share, 0), 1) * (COLOURS.length - 1);
    const low = Math.min(Math.floor(at), COLOURS.length - 2);
    const part = COLOURS[low].map((each, n) => Math.round(each + (at - low) * (COLOURS[low + 1][n] - each)));
    return `rgb(${part})`;
  };
  const number = (value) => (value === null ? "not finite" : String(Number(value.toPrecision(4))));
  const make = (tag, parent, settings = {}) => {
    const made = Object.assign(document.createElement(tag), settings);
    parent.append(made);
    return made;
  };
  const probe = document.createElement("span"); // whose colour the theme resolves
  const ink = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const nearestToZero = (values) => values.reduce((best, each, n) => (Math.abs(each) < Math.abs(values[best]) ? n : best), 0);

  class View {
    constructor(box) {
      this.data = JSON.parse(box.textContent);
      const known = this.data.loss.flat().filter((each) => each !== null);
      this.low = Math.min(...known);
      this.high = Math.max(...known);
      this.isLog = this.low > 0 && this.high > 10 * this.low;
      this.turn = 0.7;
      this.tilt = 0.55;
      this.cut = [nearestToZero(this.data.x), nearestToZero(this.data.y)];
      this.build(box);
    }

    build(box) {
      const root = document.createElement("div");
      root.className = "view";
      box.after(root);
      root.append(probe);
      const name = `${this.data.names[0]} and ${this.data.names[1]}`;
      this.canvas = make("canvas", root, { tabIndex: 0 });
      this.canvas.setAttribute("role", "img");
      this.canvas.setAttribute("aria-label", `Loss surface over ${name}; arrow keys turn it`);
      this.said = make("p", root, { className: "said" });
      this.said.setAttribute("aria-live", "polite");
      const tools = make("div", root, { className: "tools" });
      this.sliders = [this.data.x, this.data.y].map((values, axis) => {
        const label = make("label", tools, { textContent: `cut at ${this.data.names[axis]} ` });
        const slider = make("input", label, { type: "range", min: 0, max: values.length - 1 });
        slider.value = this.cut[axis];
        slider.addEventListener("input", () => {
          this.cut[axis] = Number(slider.value);
          this.draw();
        });
        return slider;
      });
      const label = make("label", tools);
      const check = make("input", label, { type: "checkbox", checked: this.isLog, disabled: this.low <= 0 });
      label.append(" logarithmic");
      check.addEventListener("change", () => { this.isLog = check.checked; this.draw(); });
      this.slices = [0, 1].map(() => {
        const slice = make("canvas", root, { className: "slice" });
        slice.setAttribute("role", "img");
        return slice;
      });
      this.listen();
      new ResizeObserver(() => this.draw()).observe(root);
      new MutationObserver(() => this.draw()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    }

    listen() {
      let from = null;
      this.canvas.addEventListener("pointerdown", (event) => {
        from = [event.clientX, event.clientY, this.turn, this.tilt];
        this.canvas.setPointerCapture(event.pointerId);
      });
      this.canvas.addEventListener("pointermove", (event) => {
        if (from === null) return this.read(event);
        this.turn = from[2] + TURN * (event.clientX - from[0]);
        this.tilt = Math.min(Math.max(from[3] + TURN * (event.clientY - from[1]), 0), Math.PI / 2);
        this.draw();
      });
      for (const kind of ["pointerup", "pointercancel"]) {
        this.canvas.addEventListener(kind, (event) => { from = null; this.read(event); });
      }
      this.canvas.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[event.key];
        if (step === undefined) return;
        event.preventDefault();
        this.turn += step[0];
        this.tilt = Math.min(Math.max(this.tilt + step[1], 0), Math.PI / 2);
        this.draw();
      });
    }

    share(loss) {
      if (this.high === this.low) return 0;
      const scale = this.isLog ? Math.log : (each) => each;
      return (scale(loss) - scale(this.low)) / (scale(this.high) - scale(this.low));
    }

    place(a, b, height) { // from shares of the three axes to pixels, and the depth
      const [u, v] = [a - 0.5, b - 0.5];
      const x = u * Math.cos(this.turn) - v * Math.sin(this.turn);
      const y = u * Math.sin(this.turn) + v * Math.cos(this.turn);
      const z = HEIGHT * (height - 0.5);
      const scale = 0.56 * Math.min(this.width, 1.25 * this.height);
      return {
        x: this.width / 2 + scale * x,
        y: 0.47 * this.height + scale * (y * Math.sin(this.tilt) - z * Math.cos(this.tilt)),
        depth: y * Math.cos(this.tilt) + z * Math.sin(this.tilt),
      };
    }

    sized(canvas, ratio) {
      const width = canvas.clientWidth;
      const height = Math.round(width * ratio);
      canvas.style.height = `${height}px`;
      canvas.width = width * devicePixelRatio;
      canvas.height = height * devicePixelRatio;
      const context = canvas.getContext("2d");
      context.scale(devicePixelRatio, devicePixelRatio);
      return [context, width, height];
    }

    draw() {
      if (!this.canvas.clientWidth) return; // folded
      const [context, width, height] = this.sized(this.canvas, 0.62);
      [this.width, this.height] = [width, height];
      const { x, y, loss } = this.data;
      this.points = x.map((_, i) => y.map((_, j) => {
        const value = loss[i][j];
        return value === null ? null : this.place(i / (x.length - 1), j / (y.length - 1), this.share(value));
      }));
      this.frame(context);
      this.faces(context);
      this.path(context);
      this.cuts(context);
      this.slices.forEach((canvas, axis) => this.slice(canvas, axis));
    }

    frame(context) {
      const corners = [[0, 0], [1, 0], [1, 1], [0, 1]];
      context.strokeStyle = ink("--line");
      context.fillStyle = ink("--quiet");
      context.font = "12px system-ui, sans-serif";
      context.textAlign = "center";
      context.beginPath();
      corners.forEach(([a, b], n) => {
        const [from, to] = [this.place(a, b, 0), this.place(...corners[(n + 1) % 4], 0)];
        context.moveTo(from.x, from.y);
        context.lineTo(to.x, to.y);
      });
      context.stroke();
      const { x, y, names } = this.data;
      const near = (options) => options.reduce((one, two) => (this.place(...one, 0).depth > this.place(...two, 0).depth ? one : two));
      const write = (text, [a, b], down = 16) => {
        const at = this.place(a, b, 0);
        context.fillText(text, at.x, at.y + down);
      };
      const [, side] = near([[0.5, -0.08], [0.5, 1.08]]);
      const [edge] = near([[-0.08, 0.5], [1.08, 0.5]]);
      write(names[0], [0.5, side]);
      write(number(x[0]), [0, side], 8);
      write(number(x.at(-1)), [1, side], 8);
      write(names[1], [edge, 0.5]);
      write(number(y[0]), [edge, 0], 8);
      write(number(y.at(-1)), [edge, 1], 8);
    }

    faces(context) {
      const { x, y, loss } = this.data;
      const found = [];
      for (let i = 0; i + 1 < x.length; i += 1) {
        for (let j = 0; j + 1 < y.length; j += 1) {
          const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]];
          const points = corners.map(([m, n]) => this.points[m][n]);
          if (points.includes(null)) continue;
          const mean = corners.reduce((sum, [m, n]) => sum + this.share(loss[m][n]), 0) / 4;
          found.push({ points, mean, depth: points.reduce((sum, each) => sum + each.depth, 0) });
        }
      }
      found.sort((one, two) => one.depth - two.depth);
      context.lineWidth = 0.6;
      for (const { points, mean } of found) {
        context.fillStyle = mixed(mean);
        context.strokeStyle = mixed(mean);
        context.beginPath();
        points.forEach((each, n) => context[n ? "lineTo" : "moveTo"](each.x, each.y));
        context.closePath();
        context.fill();
        context.stroke();
      }
    }

    line(context, points, colour, width) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.beginPath();
      let open = false;
      for (const each of points) {
        if (each !== null) context[open ? "lineTo" : "moveTo"](each.x, each.y);
        open = each !== null;
      }
      context.stroke();
    }

    cuts(context) {
      this.line(context, this.points[this.cut[0]], "#ffffff", 2);
      this.line(context, this.points.map((row) => row[this.cut[1]]), "#ffffff", 2);
    }

    path(context) {
      const { x, y, loss, path } = this.data;
      const points = path.map(([a, b]) => {
        const share = [(a - x[0]) / (x.at(-1) - x[0]), (b - y[0]) / (y.at(-1) - y[0])];
        const i = Math.round(share[0] * (x.length - 1));
        const j = Math.round(share[1] * (y.length - 1));
        const value = loss[i]?.[j] ?? null;
        return value === null ? null : this.place(...share, this.share(value) + 0.02);
      });
      this.line(context, points, "#d55e00", 2.5);
    }

    slice(canvas, axis) { // along one axis, at the cut of the other
      const [context, width, height] = this.sized(canvas, 0.4);
      const values = axis ? this.data.y : this.data.x;
      const other = axis ? this.data.x : this.data.y;
      const at = this.cut[1 - axis];
      const losses = values.map((_, n) => (axis ? this.data.loss[at][n] : this.data.loss[n][at]));
      const text = `along ${this.data.names[axis]}, at ${number(other[at])}`;
      canvas.setAttribute("aria-label", `Loss ${text}`);
      context.fillStyle = ink("--quiet");
      context.font = "12px system-ui, sans-serif";
      context.fillText(`loss ${text}`, 4, 14);
      const known = losses.filter((each) => each !== null);
      if (known.length) context.fillText(`${number(Math.min(...known))} to ${number(Math.max(...known))}`, 4, 30);
      const points = losses.map((each, n) => (each === null ? null : {
        x: 4 + (n / (values.length - 1)) * (width - 8),
        y: height - 6 - this.share(each) * (height - 42),
      }));
      this.line(context, points, ink("--link"), 1.8);
      context.strokeStyle = ink("--line");
      context.strokeRect(0.5, 0.5, width - 1, height - 1);
    }

    read(event) {
      const box = this.canvas.getBoundingClientRect();
      const [left, top] = [event.clientX - box.left, event.clientY - box.top];
      let [found, least] = [null, NEAR];
      this.points?.forEach((row, i) => row.forEach((each, j) => {
        if (each === null) return;
        const apart = Math.hypot(each.x - left, each.y - top) - 4 * each.depth; // the front first
        if (apart < least) [found, least] = [[i, j], apart];
      }));
      if (found === null) { this.said.textContent = "\u00a0"; return; }
      const { x, y, loss, names } = this.data;
      const [i, j] = found;
      this.said.textContent = `${names[0]} ${number(x[i])}, ${names[1]} ${number(y[j])}: loss ${number(loss[i][j])}`;
    }
  }

  addEventListener("DOMContentLoaded", () => {
    for (const box of document.querySelectorAll(".surface")) new View(box).draw();
    document.querySelectorAll("main details").forEach((each) => each.addEventListener("toggle", () => dispatchEvent(new Event("resize"))));
  });
})();
