// What the report and the dashboard share: figures for people, the theme, elements, plots on uPlot.
"use strict";

const feedline = (() => {
  // Figures for people. Every text has its unit; what is not known is a dash.
  const known = (value) => typeof value === "number" && Number.isFinite(value);
  const grouped = (value, digits) =>
    value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

  /** 12,345; a fraction only below ten. */
  const count = (value) => {
    if (!known(value)) return "–";
    const size = Math.abs(value);
    return grouped(value, size >= 10 || Number.isInteger(value) ? 0 : size >= 1 ? 1 : 2);
  };

  /** 340 ms, 9.9 s, 3 min 05 s. */
  const seconds = (value) => {
    if (!known(value)) return "–";
    const size = Math.abs(value);
    if (size === 0) return "0 s";
    if (size < 1e-6) return `${grouped(value * 1e9, 0)} ns`;
    if (size < 1e-3) return `${grouped(value * 1e6, size < 1e-5 ? 1 : 0)} µs`;
    if (size < 1) return `${grouped(value * 1e3, size < 0.01 ? 2 : size < 0.1 ? 1 : 0)} ms`;
    if (size < 60) return `${grouped(value, size < 10 ? 2 : 1)} s`;
    const whole = Math.round(value);
    return `${grouped(Math.floor(whole / 60), 0)} min ${String(whole % 60).padStart(2, "0")} s`;
  };

  /** 512 MB, 1.5 GB: powers of 1000, as feedline's commands print them. */
  const bytes = (value) => {
    if (!known(value)) return "–";
    const units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let place = 0;
    while (Math.abs(value) >= 999.5 && place < units.length - 1) {
      value /= 1000;
      place += 1;
    }
    return `${grouped(value, place && Math.abs(value) < 9.95 ? 1 : 0)} ${units[place]}`;
  };

  /** 0.4 %, 31 %. */
  const percent = (share) => {
    if (!known(share)) return "–";
    const size = Math.abs(share * 100);
    return `${grouped(share * 100, size > 0 && size < 9.95 ? 1 : 0)} %`;
  };

  /** An element. Texts go in as text, never as markup. */
  const element = (tag, properties = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name === "style") Object.assign(made.style, value);
      else if (name in made && (made[name] === null || typeof made[name] !== "object")) made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  };

  /** A table in a box that scrolls by itself. Rows hold texts or elements. */
  const table = (headings, rows) => {
    const cells = (tag, row) => row.map((cell) => element(tag, {}, cell));
    const body = rows.map((row) => element("tr", { className: row.mark ?? "" }, ...cells("td", row)));
    const head = element("tr", {}, ...cells("th", headings));
    const made = element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
    return element("div", { className: "scrolls", tabIndex: 0, role: "region", ariaLabel: "table" }, made);
  };

  // The theme: the system's until a button says otherwise; paper is always light.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => {
    try {
      return localStorage.getItem("feedline-theme");
    } catch {
      return null; // A page from a file may have no storage.
    }
  };
  let chosen = remembered();
  let printing = false;
  const plots = new Set();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const theme = () => {
    if (printing) return "light";
    return chosen === "dark" || chosen === "light" ? chosen : system.matches ? "dark" : "light";
  };
  const show_theme = () => {
    document.documentElement.dataset.theme = theme();
    plots.forEach((plot) => plot.remake());
  };
  system.addEventListener("change", show_theme);
  const print = (on) => () => {
    printing = on;
    show_theme();
  };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
  document.documentElement.dataset.theme = theme();

  /** A button that changes between light and dark. */
  const theme_button = () => {
    const label = () => (theme() === "dark" ? "Light" : "Dark");
    const button = element("button", { type: "button", className: "theme", title: "Change the colours" }, label());
    button.addEventListener("click", () => {
      chosen = theme() === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("feedline-theme", chosen);
      } catch {
        // It holds for this visit.
      }
      show_theme();
      button.textContent = label();
    });
    system.addEventListener("change", () => (button.textContent = label()));
    return button;
  };

  const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
  // A4 without its margins, at 96 dots an inch, without a panel's padding.
  const PAPER = 640;

  /** An axis in the page's colours. */
  const axis = (more = {}) => ({
    stroke: colour("text"),
    font: FONT,
    labelFont: FONT,
    labelSize: 18,
    labelGap: 0,
    size: 30,
    gap: 6,
    ticks: { stroke: colour("line"), width: 1, size: 5 },
    grid: { stroke: colour("grid"), width: 1 },
    ...more,
  });

  /** Wide enough for the longest label of an axis; for `axis({ size: fitting })`. */
  const fitting = (plot, values, place, cycle) => {
    const own = plot.axes[place];
    if (cycle > 1) return own._size;
    let size = own.ticks.size + own.gap + 4;
    if (values?.length) {
      plot.ctx.save();
      plot.ctx.font = FONT;
      size += Math.max(...values.map((text) => plot.ctx.measureText(text ?? "").width));
      plot.ctx.restore();
    }
    return Math.ceil(size);
  };

  /**
   * A plot that follows its box's width and the theme. `describe(width)` gives uPlot's options
   * without the width, and is asked again when colours change; `data()` gives the columns.
   */
  const plot = (box, describe, data) => {
    const own = { chart: null, box };
    const width = () => (printing ? PAPER : Math.max(200, Math.floor(box.clientWidth)));
    own.remake = () => {
      const kept = own.chart && own.keep ? own.keep(own.chart) : null;
      own.chart?.destroy();
      own.width = width();
      own.chart = new uPlot({ width: own.width, ...describe(own.width) }, data(), box);
      if (kept) own.restore(own.chart, kept);
    };
    own.remove = () => {
      own.chart?.destroy();
      watcher.disconnect();
      plots.delete(own);
    };
    const watcher = new ResizeObserver(() => {
      if (!printing && Math.abs(width() - own.width) > 1) own.remake();
    });
    plots.add(own);
    own.remake();
    watcher.observe(box);
    return own;
  };

  /** A text beside the pointer, kept inside the plot's box. */
  const tip = (box) => {
    const made = element("div", { className: "tip", hidden: true });
    box.append(made);
    return {
      hide: () => (made.hidden = true),
      show: (text, left, top) => {
        made.textContent = text;
        made.hidden = false;
        const room = box.clientWidth - made.offsetWidth - 4;
        made.style.left = `${Math.max(0, Math.min(left + 14, room))}px`;
        const below = top + 18;
        const above = top - made.offsetHeight - 10;
        made.style.top = `${below + made.offsetHeight > box.clientHeight && above > 0 ? above : below}px`;
      },
    };
  };

  /** The colour of the line with this number. */
  const line_colour = (number) => colour(`line-${(number % 8) + 1}`);

  return {
    count, seconds, bytes, percent, known, element, table,
    colour, theme_button, axis, fitting, plot, tip, line_colour, FONT,
  };
})();
