// The timeline: uPlot has the axes, the zoom and the pointer; spans are drawn by its draw hook.
"use strict";

const timeline = (() => {
  const { element, colour, seconds, count, axis, fitting, FONT } = feedline;

  // With more workers, rows for each stage would be too many to be seen at once.
  const SPLIT_WORKERS = 4;
  const ruler = document.createElement("canvas").getContext("2d");

  /** From the data's numbers to columns: activity, begin and end in seconds, batch. */
  const unpack = (lane) => {
    const size = lane.spans.length / 4;
    const made = {
      name: lane.name, size, longest: 0, kind: new Uint8Array(size), begin: new Float64Array(size),
      end: new Float64Array(size), batch: new Float64Array(size),
    };
    let at = 0;
    for (let place = 0; place < size; place += 1) {
      const [kind, since, took, batch] = lane.spans.slice(place * 4, place * 4 + 4);
      at += since;
      made.kind[place] = kind;
      made.begin[place] = at / 1e6;
      made.end[place] = (at + took) / 1e6;
      made.batch[place] = batch;
      made.longest = Math.max(made.longest, took / 1e6);
    }
    return made;
  };

  /** A lane with the spans of one activity only. */
  const only = (lane, kind, name) => {
    const keep = [];
    for (let place = 0; place < lane.size; place += 1) if (lane.kind[place] === kind) keep.push(place);
    const pick = (column) => Float64Array.from(keep, (place) => column[place]);
    return {
      name, size: keep.length, longest: lane.longest, kind: new Uint8Array(keep.length).fill(kind),
      begin: pick(lane.begin), end: pick(lane.end), batch: pick(lane.batch),
    };
  };

  /** The first span of a lane that may still be seen from `moment` on. */
  const first_from = (lane, moment) => {
    let low = 0;
    let high = lane.size;
    const since = moment - lane.longest;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.begin[middle] < since) low = middle + 1;
      else high = middle;
    }
    return low;
  };

  /** Stripes on the ground: nothing is done here. */
  const hatched = (ctx, ratio) => {
    const size = Math.round(8 * ratio);
    const tile = element("canvas", { width: size, height: size });
    const pen = tile.getContext("2d");
    pen.strokeStyle = colour("wait");
    pen.lineWidth = 1.2 * ratio;
    for (const shift of [-size, 0, size]) {
      pen.beginPath();
      pen.moveTo(shift, size);
      pen.lineTo(shift + size, 0);
      pen.stroke();
    }
    return ctx.createPattern(tile, "repeat");
  };

  /** Draws what is in view. Spans narrower than two pixels share columns, each by its time. */
  const draw = (plot, rows, names) => {
    const { ctx } = plot;
    const { left, top, width, height } = plot.bbox;
    const { min, max } = plot.scales.x;
    const scale = width / (max - min);
    const tall = height / rows.length;
    const inset = Math.max(1, Math.round(tall * 0.14));
    const fills = names.map((name) => (name === "wait" ? hatched(ctx, devicePixelRatio) : colour(name)));
    const drawn = { spans: 0, rectangles: 0 };
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    rows.forEach((lane, row) => {
      const high = Math.round(top + row * tall) + inset;
      const size = Math.max(1, Math.round(tall) - 2 * inset);
      let column = -1;
      const share = new Float64Array(names.length);
      const flush = () => {
        if (column < 0) return;
        let base = high + size;
        for (let kind = names.length - 1; kind >= 0; kind -= 1) {
          if (share[kind] <= 0) continue;
          const part = Math.min(1, share[kind]) * size;
          ctx.fillStyle = fills[kind];
          ctx.fillRect(left + column, base - part, 1, part);
          drawn.rectangles += 1;
          base -= part;
        }
        share.fill(0);
        column = -1;
      };
      for (let place = first_from(lane, min); place < lane.size && lane.begin[place] < max; place += 1) {
        const from = (lane.begin[place] - min) * scale;
        const to = (lane.end[place] - min) * scale;
        if (to < 0) continue;
        drawn.spans += 1;
        if (to - from >= 2) {
          flush();
          const [a, b] = [Math.max(-2, Math.round(from)), Math.min(width + 2, Math.round(to))];
          ctx.fillStyle = fills[lane.kind[place]];
          // A pixel of ground between neighbours of the same colour, where there is room.
          ctx.fillRect(left + a, high, Math.max(1, b - a - (b - a > 5 ? 1 : 0)), size);
          drawn.rectangles += 1;
          continue;
        }
        for (let at = Math.floor(from); at <= to; at += 1) {
          if (at !== column) {
            flush();
            column = at;
          }
          // A span of no length still shows.
          const part = Math.min(to, at + 1) - Math.max(from, at);
          share[lane.kind[place]] += Math.max(part, to - from < 0.02 ? 0.02 : 0);
        }
      }
      flush();
    });
    ctx.restore();
    return drawn;
  };

  /** Labels of moments, as exact as the distance between them asks for. */
  const moments = (plot, splits, place, space, distance) => {
    const described = (value) => {
      const text = (number, digits, unit) =>
        `${number.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
      if (distance >= 1) return text(value, 0, "s");
      if (distance >= 0.1) return text(value, 1, "s");
      if (distance >= 1e-3) return text(value * 1e3, 0, "ms");
      return text(value * 1e3, distance >= 1e-4 ? 1 : distance >= 1e-5 ? 2 : 3, "ms");
    };
    ruler.font = FONT;
    // A label that would be cut at the picture's edge is left out.
    const fits = (value, text) => plot.bbox.left / devicePixelRatio + plot.valToPos(value, "x") + ruler.measureText(text).width / 2 <= plot.width;
    return splits.map((value) => {
      const text = described(value);
      return fits(value, text) ? text : "";
    });
  };

  /** Puts a timeline into a box, with buttons and a legend. */
  const show = (box, data, names) => {
    const whole = data.lanes.map(unpack);
    const seen = new Set(whole.flatMap((lane) => [...new Set(lane.kind)]));
    const split_rows = () =>
      whole.flatMap((lane, place) => {
        const kinds = [...new Set(lane.kind)].sort((a, b) => a - b);
        if (place === 0 || kinds.length < 2) return [lane];
        return kinds.map((kind) => only(lane, kind, `${lane.name}: ${names[kind]}`));
      });
    let rows = whole.length <= SPLIT_WORKERS + 1 ? split_rows() : whole;
    const starts = whole.filter((lane) => lane.size).map((lane) => lane.begin[0]);
    const start = Math.min(...starts);
    let end = start + 1e-6;
    for (const lane of whole) for (const moment of lane.end) end = Math.max(end, moment);

    const area = element("div", {
      className: "plot timeline", tabIndex: 0, role: "img",
      ariaLabel: `Timeline of ${data.name}: the trainer's row, and those of the workers. Plus and minus zoom, arrows move, 0 shows all.`,
    });
    const button = (text, title, act) => {
      const made = element("button", { type: "button", title, ariaLabel: title }, text);
      made.addEventListener("click", act);
      return made;
    };
    let own = null;
    const state = { drawn: { spans: 0, rectangles: 0 } };
    const range = () => [own.chart.scales.x.min, own.chart.scales.x.max];
    const look = (min, max) => {
      const most = end - start;
      const width = Math.min(most, Math.max(max - min, 2e-6));
      const from = Math.min(Math.max(start, min), end - width);
      own.chart.setScale("x", { min: from, max: from + width });
    };
    const zoom = (factor, about) => {
      const [min, max] = range();
      const middle = about ?? (min + max) / 2;
      look(middle - (middle - min) * factor, middle + (max - middle) * factor);
    };
    const move = (share) => {
      const [min, max] = range();
      look(min + (max - min) * share, max + (max - min) * share);
    };
    const reset = () => look(start, end);
    const split = button("", "", () => {
      rows = rows === whole ? split_rows() : whole;
      name_split();
      own.remake();
    });
    const name_split = () => {
      const joined = rows === whole;
      split.textContent = joined ? "Split stages" : "Join stages";
      split.title = joined ? "One row for each worker and stage" : "One row for each worker";
      split.ariaLabel = split.title;
    };
    name_split();
    const keys = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: reset, ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25) };
    area.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    });
    area.addEventListener("wheel", (event) => {
      // The page must scroll on over the timeline: only with a key held down, or sideways.
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        const over = own.chart.over.getBoundingClientRect();
        zoom(Math.exp(event.deltaY / 300), own.chart.posToVal(event.clientX - over.left, "x"));
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        move(event.deltaX / 600);
      }
    }, { passive: false });

    const controls = element("div", { className: "controls" },
      button("+", "Zoom in", keys["+"]), button("−", "Zoom out", keys["-"]),
      button("◀", "Earlier", keys.ArrowLeft), button("▶", "Later", keys.ArrowRight),
      button("Reset", "Show all", reset), split);
    const swatch = (name) => element("li", {},
      element("span", {
        className: "swatch",
        style: name === "wait"
          ? { background: "repeating-linear-gradient(-45deg, var(--wait) 0 1.5px, transparent 1.5px 4.5px)", border: "1px solid var(--wait)" }
          : { background: `var(--${name})` },
      }), LABELS[name] ?? name);
    const legend = element("ul", { className: "swatches" },
      ...names.filter((_, kind) => seen.has(kind)).map(swatch));
    box.append(controls, legend, area);
    const note = feedline.tip(area);

    const at_pointer = (plot) => {
      const { left, top } = plot.cursor;
      if (!(left >= 0) || !(top >= 0)) return note.hide();
      const moment = plot.posToVal(left, "x");
      const row = rows[Math.floor((top / plot.over.clientHeight) * rows.length)];
      if (!row) return note.hide();
      const near = plot.posToVal(left + 1, "x") - moment;
      let found = -1;
      for (let place = first_from(row, moment - near); place < row.size && row.begin[place] <= moment + near; place += 1) {
        if (row.end[place] < moment - near) continue;
        found = place;
        if (row.begin[place] <= moment && moment <= row.end[place]) break;
      }
      if (found < 0) return note.hide();
      const name = names[row.kind[found]];
      const text = `${row.name.split(":")[0]}: ${LABELS[name] ?? name}\n` +
        `${seconds(row.end[found] - row.begin[found])}, batch ${count(row.batch[found])}\nat ${row.begin[found].toFixed(4)} s`;
      note.show(text, left + plot.over.offsetLeft, top + plot.over.offsetTop);
    };

    const describe = () => {
      const each = rows.length > 40 ? 15 : rows.length > 16 ? 19 : 26;
      return {
        height: rows.length * each + 50,
        padding: [4, 30, 0, 0],
        legend: { show: false },
        scales: {
          x: { time: false, range: (_, min, max) => (min === null ? [start, end] : [min, max]) },
          y: { range: [0, rows.length] },
        },
        series: [{}, { show: true, paths: () => null, points: { show: false } }],
        axes: [
          axis({ values: moments, space: 90, grid: { show: false } }),
          axis({
            splits: () => rows.map((_, row) => rows.length - row - 0.5),
            values: () => rows.map((row) => row.name),
            size: fitting, ticks: { show: false, size: 0 }, grid: { show: false },
          }),
        ],
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
        hooks: {
          drawClear: [(plot) => {
            // Every row has a ground, so that a gap is seen as one.
            const { ctx, bbox } = plot;
            const tall = bbox.height / rows.length;
            ctx.save();
            ctx.fillStyle = colour("ground");
            rows.forEach((_, row) => {
              const inset = Math.max(1, Math.round(tall * 0.14));
              ctx.fillRect(bbox.left, Math.round(bbox.top + row * tall) + inset, bbox.width, Math.max(1, Math.round(tall) - 2 * inset));
            });
            ctx.restore();
          }],
          draw: [(plot) => {
            state.drawn = draw(plot, rows, names);
            area.dataset.range = range_text(plot);
          }],
          setCursor: [at_pointer],
        },
      };
    };
    const range_text = (plot) => `${plot.scales.x.min} ${plot.scales.x.max}`;
    own = feedline.plot(area, describe, () => [[start, end], [null, null]]);
    own.keep = (plot) => [plot.scales.x.min, plot.scales.x.max];
    own.restore = (plot, [min, max]) => plot.setScale("x", { min, max });
    return { remove: own.remove, state, look };
  };

  const LABELS = {
    wait: "waiting for a batch", step: "training step", read: "reading", decode: "decoding",
    transform: "transforming", copy: "copying", code: "own code", memory: "in line for memory",
  };

  return { show, FONT };
})();
