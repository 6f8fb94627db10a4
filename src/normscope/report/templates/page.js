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

  addEventListener("DOMContentLoaded", () => {
    startTheme(document.getElementById("theme"));
    document.querySelectorAll("table.sortable").forEach(startTable);
    document.querySelectorAll("button.copy").forEach(startCopy);
    document.querySelectorAll(".command code").forEach(keepWords);
    for (const box of document.querySelectorAll(".scroll")) {
      box.addEventListener("scroll", () => faded(box), { passive: true });
    }
    reachable();
    addEventListener("resize", reachable);
  });
})();
