"use strict";
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const KEY = "normscope-theme";

  const remembered = () => {
    try { return localStorage.getItem(KEY); } catch { return null; }
  };
  const remember = (theme) => {
    try { localStorage.setItem(KEY, theme); } catch { /* a page from disk may not keep anything */ }
  };
  const theme = () => root.dataset.theme ?? (system.matches ? "dark" : "light");

  // Before the page is drawn, so that it does not flash in the other theme.
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();

  const startTheme = (button) => {
    const label = () => { button.textContent = theme() === "dark" ? "Light theme" : "Dark theme"; };
    button.addEventListener("click", () => {
      root.dataset.theme = theme() === "dark" ? "light" : "dark";
      remember(root.dataset.theme);
      label();
    });
    system.addEventListener("change", label);
    button.hidden = false;
    label();
  };

  const valueOf = (cell) => {
    if (cell === undefined || "missing" in cell.dataset) return null;
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
  };
  const words = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
  const compare = (a, b) => {
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    if (typeof a === "string") return words.compare(a, b);
    return a < b ? -1 : a > b ? 1 : 0;
  };

  const sort = (table, column, sign) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [valueOf(row.cells[column]), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null); // last in both directions
      return sign * compare(a, b);
    });
    body.append(...rows.map(([, row]) => row));
  };

  const startTable = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(table, column, descending ? -1 : 1);
      });
    });
  };

  const copied = async (source) => {
    try {
      await navigator.clipboard.writeText(source.textContent);
      return true;
    } catch { // not allowed for a page from disk in some browsers: select it instead
      getSelection().selectAllChildren(source);
      return document.execCommand("copy");
    }
  };
  const startCopy = (button) => {
    const source = document.getElementById(button.dataset.copies);
    button.setAttribute("aria-live", "polite");
    button.hidden = false;
    const name = button.getAttribute("aria-label");
    const tell = (text, label) => {
      button.textContent = text;
      button.setAttribute("aria-label", label);
    };
    button.addEventListener("click", async () => {
      const text = (await copied(source)) ? "Copied" : "Selected";
      tell(text, text);
      setTimeout(() => tell("Copy", name), 2000);
    });
  };

  // A word of a command stays whole where the line has room for it, an option's hyphens too.
  const keepWords = (code) => {
    const pieces = code.textContent.split(/(\s+)/).map((piece) => {
      if (!piece.trim()) return piece;
      const word = document.createElement("span");
      word.className = "word";
      word.textContent = piece;
      return word;
    });
    code.replaceChildren(...pieces);
  };

  // What scrolls inside the page can be reached and moved by the keyboard, and says that it does.
  const faded = (box) => {
    const hidden = box.scrollWidth - box.clientWidth - box.scrollLeft;
    box.toggleAttribute("data-more", hidden > 2);
    box.toggleAttribute("data-below", box.scrollHeight - box.clientHeight - box.scrollTop > 2);
  };
  // A long table ends at the border of a row, not in its middle.
  const fit = (box) => {
    box.style.removeProperty("--fitted");
    const top = box.getBoundingClientRect().top + box.clientTop - box.scrollTop;
    const ends = [...box.querySelectorAll("tbody tr")].map((row) => row.getBoundingClientRect().bottom - top);
    const seen = ends.filter((end) => end <= box.clientHeight).at(-1);
    if (seen) box.style.setProperty("--fitted", `${seen + box.offsetHeight - box.clientHeight}px`);
  };
  const reachable = () => {
    document.querySelectorAll(".scroll.long").forEach(fit);
    for (const box of document.querySelectorAll(".scroll")) {
      const wide = box.scrollWidth > box.clientWidth;
      if (wide || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
      box.toggleAttribute("data-wide", wide);
      box.toggleAttribute("data-whole", box.scrollHeight <= box.clientHeight);
      faded(box);
    }
  };

  // The value nearest to the pointer, with a ring around its place in the drawing.
  const NEAR = 28; // pixels
  const spot = document.createElement("div");
  const tip = document.createElement("div");
  spot.className = "spot";
  tip.className = "tip";
  const hideValue = () => { spot.remove(); tip.remove(); };
  const nearest = (points, matrix, event) => {
    let found = null;
    let least = NEAR;
    for (const each of points) {
      const x = each.x * matrix.a + matrix.e;
      const y = each.y * matrix.d + matrix.f;
      const apart = Math.hypot(x - event.clientX, y - event.clientY);
      if (apart < least) [least, found] = [apart, { x, y, text: each.text }];
    }
    return found;
  };
  const showValue = (svg, points, event) => {
    const found = nearest(points, svg.getScreenCTM(), event);
    if (found === null) return hideValue();
    tip.textContent = found.text;
    document.body.append(spot, tip);
    spot.style.left = `${found.x}px`;
    spot.style.top = `${found.y}px`;
    const { width, height } = tip.getBoundingClientRect();
    const left = Math.min(Math.max(found.x - width / 2, 4), root.clientWidth - width - 4);
    tip.style.left = `${left}px`;
    tip.style.top = `${found.y - height - 12 > 0 ? found.y - height - 12 : found.y + 14}px`;
  };
  const startValues = (box) => {
    const points = JSON.parse(box.textContent).flatMap(([name, horizontal, vertical, all]) =>
      all.map(([x, y, at, value]) => {
        const where = horizontal && `${horizontal} ${at}`;
        const words = [name, where].filter(Boolean).join(", ");
        return { x, y, text: `${words}${words && ": "}${vertical} ${value}` };
      }));
    for (const svg of box.parentElement.querySelectorAll("svg")) {
      for (const kind of ["pointermove", "pointerdown"]) {
        svg.addEventListener(kind, (event) => showValue(svg, points, event));
      }
      svg.addEventListener("pointerleave", (event) => {
        if (event.pointerType !== "touch") hideValue(); // a finger leaves as soon as it lifts
      });
    }
  };

  // What a link leads to is shown, also inside something folded; so is everything in print.
  const unfold = (element) => {
    for (let e = element; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
  };
  const unfoldTarget = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target === null) return;
    unfold(target);
    target.scrollIntoView();
  };
  let folded = [];
  const unfoldAll = () => {
    folded = [...document.querySelectorAll("main details:not([open])")];
    folded.forEach((each) => { each.open = true; });
  };
  const foldAgain = () => folded.forEach((each) => { each.open = false; });

  // The contents mark the section that is read, and a menu closes behind the reader.
  const startContents = (menu) => {
    menu.addEventListener("click", (event) => {
      if (event.target.closest("a")) menu.open = false;
    });
    addEventListener("keydown", (event) => {
      if (event.key === "Escape") menu.open = false;
    });
    const links = [...document.querySelectorAll("nav a")];
    const heads = links.map((link) => document.getElementById(link.hash.slice(1)));
    const top = (head) => head.getBoundingClientRect().top;
    const mark = () => {
      const atEnd = scrollY + innerHeight >= root.scrollHeight - 2; // later heads cannot rise further
      const chosen = links.findIndex((link) => atEnd && link.hash === location.hash);
      const last = heads.findLastIndex((head) => top(head) < (atEnd ? innerHeight : innerHeight / 3));
      const current = links[chosen >= 0 && top(heads[chosen]) >= 0 ? chosen : Math.max(last, 0)].hash;
      for (const link of links) {
        if (link.hash === current) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    };
    addEventListener("scroll", mark, { passive: true });
    addEventListener("hashchange", mark);
    mark();
  };

  addEventListener("DOMContentLoaded", () => {
    startTheme(document.getElementById("theme"));
    document.querySelectorAll("table.sortable").forEach(startTable);
    document.querySelectorAll("button.copy").forEach(startCopy);
    document.querySelectorAll(".command code").forEach(keepWords);
    for (const box of document.querySelectorAll(".scroll")) {
      box.addEventListener("scroll", () => faded(box), { passive: true });
    }
    document.querySelectorAll(".values").forEach(startValues);
    addEventListener("hashchange", unfoldTarget); // before the contents look where it is
    startContents(document.querySelector(".menu"));
    reachable();
    addEventListener("resize", reachable);
    addEventListener("scroll", hideValue, { passive: true });
    addEventListener("pointerdown", (event) => {
      if (!event.target.closest("svg")) hideValue();
    });
    document.querySelectorAll("main details").forEach((each) => each.addEventListener("toggle", reachable));
    unfoldTarget();
    addEventListener("beforeprint", unfoldAll);
    addEventListener("afterprint", foldAgain);
  });
})();
