// The report: reads the data in the page and draws it.
"use strict";

(() => {
  const { element, table, colour, count, seconds, bytes, percent, known, axis, fitting, plot, tip, line_colour, FONT } = feedline;
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  page.replaceChildren();

  const panel = (heading, about, into = page) => {
    const made = element("section", { className: "panel" }, element("h2", {}, heading));
    if (about) made.append(element("p", { className: "quiet" }, about));
    into.append(made);
    return made;
  };
  const picture = (into, label) => {
    const box = element("div", { className: "plot", role: "img", ariaLabel: label });
    into.append(box);
    return box;
  };
  const legend = (into, entries) => {
    // A line has a piece of itself, anything else a square.
    const swatch = ({ paint, line }) => element("span", {
      className: line ? `swatch ${line}` : "swatch",
      style: line ? { color: `var(--${paint})` } : { background: `var(--${paint})` },
    });
    into.append(element("ul", { className: "swatches" },
      ...entries.map((entry) => element("li", {}, swatch(entry), entry.name))));
  };
  const line_name = (number) => `line-${(number % 8) + 1}`;
  const words = (name) => String(name).replaceAll("_", " ");

  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = FONT;
  const wide = (text) => ruler.measureText(text).width;

  /** A text that fits into so many pixels: its middle goes, as names differ at their ends. */
  const cut = (text, room) => {
    if (wide(text) <= room) return text;
    const letters = [...text];
    let kept = Math.min(letters.length - 1, 200);
    const short = () => `${letters.slice(0, Math.ceil(kept / 2)).join("")}…${letters.slice(letters.length - Math.floor(kept / 2)).join("")}`;
    while (kept > 1 && wide(short()) > room) kept -= 1;
    return short();
  };

  /** What all names begin with, in whole words. */
  const common_start = (names) => {
    if (names.length < 2) return "";
    let size = 0;
    while (size < names[0].length && names.every((name) => name[size] === names[0][size])) size += 1;
    return names[0].slice(0, size).match(/^.*[\s/,]/s)?.[0] ?? "";
  };

  /** Names as labels of one or two lines each, each different from the others. */
  const labels = (names, room) => {
    const broken = (text) => text.split(/\s+/).filter(Boolean).reduce((lines, word) => {
      const last = lines[lines.length - 1];
      if (last !== undefined && wide(`${last} ${word}`) <= room) lines[lines.length - 1] = `${last} ${word}`;
      else lines.push(word);
      return lines;
    }, []);
    const fits = (lines) => lines.length <= 2 && lines.every((line) => wide(line) <= room);
    let made = names.map(broken);
    const start = common_start(names);
    if (start && !made.every(fits)) made = names.map((name) => broken(`…${name.slice(start.length)}`));
    return made.map((lines) => (lines.length > 2 ? [lines[0], lines.slice(1).join(" ")] : lines).map((line) => cut(line, room)));
  };

  /** Where an axis ends: at an interval's end, unless that would leave the means no room. */
  const axis_end = (intervals, least) => {
    const mean = Math.max(least, ...intervals.map((one) => one.mean));
    return Math.min(Math.max(mean, ...intervals.map((one) => one.high ?? 0)), mean * 1.3);
  };

  /** What is drawn from now on stays inside of the axes. */
  const within_axes = ({ ctx, bbox }) => {
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
  };

  /** An interval as a line with ends, in canvas pixels. */
  const whisker = (ctx, from, to, across, lying) => {
    if (!(Math.abs(to - from) > 1)) return;
    const half = 4 * devicePixelRatio;
    ctx.beginPath();
    for (const [a, b, c, d] of [[from, across, to, across], [from, across - half, from, across + half], [to, across - half, to, across + half]]) {
      if (lying) ctx.moveTo(a, b), ctx.lineTo(c, d);
      else ctx.moveTo(b, a), ctx.lineTo(d, c);
    }
    ctx.stroke();
  };

  const heading = () => {
    const { machine } = data;
    const where = [
      machine.processor,
      known(machine.cores) && machine.cores ? `${count(machine.cores)} of ${count(Math.max(machine.machine_cores, machine.cores))} cores` : "",
      known(machine.memory_available) ? `${bytes(machine.memory_available)} of memory free` : "",
      machine.device ?? "",
    ].filter(Boolean);
    const texts = element("div", {}, element("h1", {}, data.title),
      element("p", { className: "quiet" }, data.target),
      element("p", { className: "quiet" }, `Against ${data.workload}.`),
      where.length ? element("p", { className: "quiet" }, where.join(", ")) : null);
    page.append(element("header", { className: "top" }, texts,
      element("div", { className: "controls" }, feedline.theme_button())));
  };

  const waiting = data.has_step ? "waiting: " : "";
  const STALLS = [["reading", "read", `${waiting}reading`], ["preparing", "decode", `${waiting}preparing`], ["copying", "copy", `${waiting}copying`], ["none", "step", data.has_step ? "not waiting" : "between batches"]];
  const WHERE = data.has_step ? "The trainer's time" : "Where the time goes";

  /** One bar of the trainer's time: shares laid one after the other. */
  const stall_bar = (into, stall) => {
    const shares = STALLS.map(([key]) => Math.max(0, stall[key] ?? 0));
    const named = STALLS.map(([, , name], place) => `${name} ${percent(shares[place])}`);
    const box = picture(into, `${WHERE}: ${named.join(", ")}`);
    let sum = 0;
    const ends = shares.map((share) => (sum += share));
    // Each series reaches to the end of its share; the longest lies undermost.
    const order = STALLS.map((_, place) => place).reverse();
    plot(box, () => ({
      height: 72,
      padding: [2, 22, 0, 14],
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false, ori: 1, dir: -1, range: [-0.5, 0.5] }, y: { ori: 0, range: [0, 1] } },
      axes: [
        axis({ side: 3, show: false }),
        axis({ side: 2, values: (_, splits) => splits.map(percent), grid: { show: false }, space: 60 }),
      ],
      series: [{}, ...order.map((place) => ({
        fill: colour(STALLS[place][1]), stroke: colour("ground"), width: 1,
        paths: uPlot.paths.bars({ size: [1, 200] }), points: { show: false },
      }))],
      hooks: {
        draw: [(chart) => {
          const { ctx, bbox } = chart;
          ctx.save();
          ctx.font = FONT.replace("12px", `600 ${13 * devicePixelRatio}px`);
          ctx.textAlign = "center";
          ctx.textBaseline = "middle";
          shares.forEach((share, place) => {
            const width = share * bbox.width;
            const text = percent(share);
            if (width < ctx.measureText(text).width + 8) return;
            ctx.fillStyle = "#000";
            const middle = chart.valToPos(ends[place] - share / 2, "y", true);
            if (STALLS[place][0] === "none" && document.documentElement.dataset.theme !== "dark") ctx.fillStyle = "#fff";
            ctx.fillText(text, middle, bbox.top + bbox.height / 2);
          });
          ctx.restore();
        }],
      },
    }), () => [[0], ...order.map((place) => [ends[place]])]);
    legend(into, STALLS.map(([, paint], place) => ({ paint, name: named[place] })));
  };

  const verdict = () => {
    const found = data.verdict;
    if (!found) return;
    const own = panel("Verdict");
    own.append(element("p", { className: "sentence" }, found.sentence));
    const fact = (name, value, kind) => element("div", {}, element("dt", {}, name), element("dd", { className: kind ?? "" }, value));
    const resource = found.resource === "none" ? "nothing of the loader" : words(found.resource);
    own.append(element("dl", { className: "facts" },
      fact("samples/s", count(found.samples_per_second)), data.has_step ? fact("trainer waited", percent(found.wait_share)) : null,
      fact("limit", found.limit, "words"), fact("at its limit", resource, "words")));
    own.append(element("h2", {}, data.has_step ? "Where the trainer's time goes" : WHERE));
    stall_bar(own, found.stall);
    if (found.signs?.length) {
      own.append(element("h2", {}, "Signs"), element("ul", { className: "plain" },
        ...found.signs.map((sign) => element("li", {}, sign))));
    }
    if (!found.advice?.length) return;
    const advice = found.advice.map((one) => element("li", {}, one.text,
      known(one.predicted) ? element("span", { className: "mark" }, `about ${count(one.predicted)} samples/s`) : null,
      one.command ? element("pre", {}, one.command) : null,
      one.code ? element("pre", {}, one.code) : null));
    own.append(element("h2", {}, "What to try"), element("ol", { className: "advice" }, ...advice));
  };

  const warnings = () => {
    if (!data.warnings.length) return;
    panel("Warnings").append(element("ul", { className: "plain" }, ...data.warnings.map((one) =>
      element("li", {}, element("strong", {}, `${words(one.kind)}: `), one.text))));
  };

  /** Lying bars with their intervals: rows of { name, mean, low, high, paint }. */
  const bars = (into, label, rows, unit) => {
    const box = picture(into, label);
    const end = axis_end(rows, 1e-9) * 1.03;
    // The means stand in a column of their own: at a bar's end, or a whisker's, a number would seem
    // to be that place's.
    const column = Math.max(...rows.map((row) => wide(count(row.mean)))) + 10;
    plot(box, (width) => {
      const room = Math.min(width * 0.42, 300, 2 + Math.max(...rows.map((row) => wide(row.name))));
      const names = labels(rows.map((row) => row.name), room);
      return {
        height: rows.length * 34 + 54,
        padding: [4, Math.max(18, column + 4), 0, 4],
        legend: { show: false },
        cursor: { show: false },
        scales: {
          x: { time: false, ori: 1, dir: -1, range: [-0.5, rows.length - 0.5] },
          y: { ori: 0, range: [0, end] },
        },
        axes: [
          axis({
            // The labels are drawn with the bars: they may have two lines.
            side: 3, size: room + 12, grid: { show: false }, ticks: { show: false, size: 0 },
            splits: () => rows.map((_, place) => place),
            values: () => rows.map(() => ""),
          }),
          axis({ side: 2, label: unit, values: (_, splits) => splits.map(count), space: 70 }),
        ],
        series: [{}, {
          stroke: "transparent", width: 0, points: { show: false },
          paths: uPlot.paths.bars({
            size: [0.62, 24],
            disp: { fill: { unit: 3, values: () => rows.map((row) => colour(row.paint)) } },
          }),
        }],
        hooks: {
          draw: [(chart) => {
            const { ctx, bbox } = chart;
            ctx.save();
            ctx.strokeStyle = colour("text");
            ctx.lineWidth = 1.3 * devicePixelRatio;
            ctx.fillStyle = colour("text");
            ctx.font = FONT.replace("12px", `${12 * devicePixelRatio}px`);
            ctx.textBaseline = "middle";
            ctx.textAlign = "right";
            rows.forEach((row, place) => {
              const across = chart.valToPos(place, "x", true);
              const at = (value) => chart.valToPos(value, "y", true);
              ctx.save();
              within_axes(chart);
              if (known(row.low)) whisker(ctx, at(row.low), at(row.high), across, true);
              ctx.restore();
              ctx.fillText(count(row.mean), bbox.left + bbox.width + column * devicePixelRatio, across);
              const lines = names[place];
              lines.forEach((line, number) => {
                const down = (number - (lines.length - 1) / 2) * 14 * devicePixelRatio;
                ctx.fillText(line, bbox.left - 8 * devicePixelRatio, across + down);
              });
            });
            ctx.restore();
          }],
        },
      };
    }, () => [rows.map((_, place) => place), rows.map((row) => row.mean)]);
  };

  const configurations = () => {
    if (!data.configurations.length) return;
    const own = panel("Configurations compared", "The best first. Lines at the bars' ends are 95 % confidence intervals of the mean.");
    const ran = data.configurations.filter((one) => one.summary);
    if (ran.length) {
      const paint = (one) => (one.best ? "line-3" : one.baseline ? "line-7" : "line-1");
      bars(own, "Samples a second of each configuration", ran.map((one) => ({
        name: one.name, paint: paint(one), ...one.summary.samples_per_second,
      })), "samples/s");
      legend(own, [{ paint: "line-3", name: "best" }, { paint: "line-1", name: "others" }, { paint: "line-7", name: "baseline" }]
        .filter(({ paint: used }) => ran.some((one) => paint(one) === used)));
    }
    const spread = (interval) => {
      const half = Math.max(interval.high - interval.mean, interval.mean - interval.low);
      return half > 0 ? `${count(interval.mean)} ± ${count(half)}` : count(interval.mean);
    };
    const headings = ["configuration", "samples/s", "against baseline", "waited", "busy", "mean wait", "wait p50", "wait p99", "first batch", "epoch turnover", "CPU a sample", "peak memory"];
    const rows = data.configurations.map((one) => {
      const name = element("span", {}, one.name,
        one.best ? element("span", { className: "mark good" }, "best") : null,
        one.baseline ? element("span", { className: "mark" }, "baseline") : null);
      const { summary } = one;
      if (!summary) {
        const why = element("span", { className: "bad" }, one.error ?? "did not run");
        name.append(element("br"), why);
        return [name, ...headings.slice(1).map(() => "–")];
      }
      const cells = [name, spread(summary.samples_per_second),
        known(one.speedup) ? `${one.speedup.toFixed(2)} ×` : "–", ...[summary.wait_share, summary.busy_share].map((share) => (data.has_step ? percent(share.mean) : "–")),
        seconds(summary.wait.mean), seconds(summary.wait.p50), seconds(summary.wait.p99), seconds(summary.first_batch_seconds.mean),
        seconds(summary.turnover_seconds?.mean), seconds(summary.cpu_seconds_per_sample), bytes(summary.peak_memory)];
      cells.mark = one.best ? "best" : "";
      return cells;
    });
    own.append(table(headings, rows));
  };

  const DASHES = { dashed: [8, 5], dotted: [2, 4] };
  /** Lines over a common x, each "line", "dashed" or "dotted"; `intervals` are drawn at their points. */
  const lines = (into, label, { x, series, x_label, y_label, x_values, y_values, top, height = 280, at_point }) => {
    const box = picture(into, label);
    const note = tip(box);
    plot(box, (width) => ({
      height,
      padding: [10, 18, 0, 0],
      legend: { show: false },
      scales: { x: { time: false, ...(x_values ? { range: (_, min, max) => (max - min < 1e-9 ? [min - 1, max + 1] : [min, max]) } : {}) }, y: { range: (_, min, max) => [0, top ?? Math.max(max * 1.06, 1e-9)] } },
      axes: [
        axis({ label: x_label, space: width < 500 ? 60 : 80, ...(x_values ? { splits: () => x_values, values: (_, splits) => splits.map(count) } : {}) }),
        axis({ label: y_label, values: (_, splits) => splits.map(y_values), size: fitting }),
      ],
      series: [{}, ...series.map((one) => ({
        label: one.name, stroke: colour(one.paint), width: 2, dash: DASHES[one.line], spanGaps: true,
        points: { show: Boolean(one.points), size: 7, fill: colour("panel") },
      }))],
      cursor: { drag: { x: !x_values, y: false }, points: { size: 8 } },
      hooks: {
        draw: [(chart) => {
          const { ctx } = chart;
          ctx.save();
          within_axes(chart);
          ctx.lineWidth = 1.3 * devicePixelRatio;
          for (const one of series) {
            if (!one.intervals) continue;
            ctx.strokeStyle = colour(one.paint);
            one.intervals.forEach((interval, place) => {
              if (!interval) return;
              const at = (value) => chart.valToPos(value, "y", true);
              whisker(ctx, at(interval.low), at(interval.high), chart.valToPos(x[place], "x", true), false);
            });
          }
          ctx.restore();
        }],
        setCursor: [(chart) => {
          const { idx, left, top: down } = chart.cursor;
          if (idx === null || idx === undefined || !(left >= 0)) return note.hide();
          const named = series.map((one, place) => ({ name: one.name, value: chart.data[place + 1][idx] })).filter(({ value }) => known(value));
          if (!named.length) return note.hide();
          const shown = named.slice(0, 12).map(({ name, value }) => `${name}: ${y_values(value)}`);
          note.show([at_point(x[idx]), ...shown].join("\n"), left + chart.over.offsetLeft, down + chart.over.offsetTop);
        }],
      },
    }), () => [x, ...series.map((one) => one.values)]);
    legend(into, series);
  };

  const workers = () => {
    if (!data.scaling.length) return;
    const columns = element("div", { className: "columns" });
    page.append(columns);
    const x = [...new Set(data.scaling.flatMap((line) => line.points.map((point) => point.workers)))].sort((a, b) => a - b);
    const at = (line, pick) => x.map((number) => {
      const point = line.points.find((one) => one.workers === number);
      return point ? pick(point) : null;
    });
    const measured = (pick, more = {}) => data.scaling.map((line, place) => ({
      name: line.name, paint: line_name(place), line: "line", points: true,
      values: at(line, (point) => pick(point).mean), intervals: at(line, pick), ...more,
    }));
    const ends = (pick, least) => axis_end(data.scaling.flatMap((line) => line.points.map(pick)), least);
    const best = ends((point) => point.rate, 1e-9);
    const common = { x, x_values: x, x_label: "workers", at_point: (number) => `${count(number)} workers` };
    const rates = measured((point) => point.rate);
    const ideal = data.scaling.find((line) => known(line.of_one));
    if (ideal) rates.push({ name: "if each worker brought as much", paint: "text", line: "dotted", values: x.map((number) => number ? ideal.of_one * number : null) });
    // A trainer that could use far more would only squeeze the rest. No measured line is black.
    const wanted = known(data.wanted) && data.wanted < best * 3 ? data.wanted : 0;
    if (wanted) rates.push({ name: "what the trainer can use", paint: "text", line: "dashed", values: x.map(() => wanted) });
    const reach = Math.max(best, wanted);
    const throughput = panel("Throughput against workers", "Samples a second; intervals of 95 % confidence.", columns);
    lines(throughput, "Samples a second against the number of workers", { ...common, series: rates, y_label: "samples/s", y_values: count, top: reach * 1.25 });
    if (!data.has_step) return;
    const waits = panel("Wait against workers", "The share of the time that the trainer waited.", columns);
    lines(waits, "Share of waiting against the number of workers", {
      ...common, series: measured((point) => point.wait), y_label: "time that the trainer waited, %", y_values: percent,
      top: ends((point) => point.wait, 0.02) * 1.15,
    });
  };

  const memory = () => {
    if (!data.memory.length) return;
    const whose = data.configurations.length > 1 ? ", in each configuration's run with the most" : "";
    const own = panel("Memory over time", `Of the process and its children${whose}. Drag to zoom, double click to see all.`);
    const shown = data.memory.slice(0, 16);
    if (shown.length < data.memory.length) own.append(element("p", { className: "quiet" }, `The first ${shown.length} of ${data.memory.length}.`));
    const columns = uPlot.join(shown.map((line) => [line.seconds, line.bytes]));
    const series = shown.map((line, place) => ({ name: line.name, paint: line_name(place), line: place >= 8 ? "dashed" : "line", values: columns[place + 1] }));
    // A budget that is far away would only squeeze the rest.
    const limit = data.memory_limit;
    const near = limit < 3 * Math.max(...shown.flatMap((line) => line.bytes));
    if (known(limit) && near) series.push({ name: `the loader's budget, ${bytes(limit)}`, paint: "text", line: "dashed", values: columns[0].map(() => limit) });
    else if (known(limit)) own.append(element("p", { className: "quiet" }, `The loader's budget is ${bytes(limit)}, far above.`));
    lines(own, "Memory over time", {
      x: columns[0], x_label: "seconds", y_label: "memory", y_values: bytes, at_point: seconds,
      series,
    });
  };

  const stages = () => {
    if (data.stages.length) {
      const own = panel("Stage by stage", "What one sample costs in each stage, and what the loader could do without it.");
      const most = Math.max(...data.stages.map((stage) => stage.share), 1e-9);
      const share = (stage) => element("span", { className: "share" },
        element("span", { className: "track" }, element("i", { style: { width: `${(stage.share / most) * 100}%`, background: `var(--${data.activities.includes(stage.name) ? stage.name : "code"})` } })),
        percent(stage.share));
      own.append(table(["stage", "time a sample", "CPU a sample", "share of CPU", "ceiling if only it ran", "if free, predicted", "if free, measured"],
        data.stages.map((stage) => [stage.name, seconds(stage.seconds), seconds(stage.cpu_seconds), share(stage),
          ...[stage.ceiling, stage.predicted_if_free, stage.measured_if_free].map((rate) => (known(rate) ? `${count(rate)} /s` : "–"))])));
    }
    const { ceilings } = data;
    const steps = [["everything real", ceilings?.real, "line-1"], ["preparing only", ceilings?.prepared, "line-3"], ["final batches replayed", ceilings?.replayed, "line-7"], ["the step alone", ceilings?.step, "line-5"]]
      .filter(([, rate]) => known(rate));
    if (!steps.length) return;
    const about = known(ceilings.step) ? "Samples a second without the training step, and of the step over one batch in hand." : "Samples a second without a training step.";
    const own = panel("With parts out of the way", about);
    bars(own, "Samples a second with parts out of the way", steps.map(([name, mean, paint]) => ({ name, mean, paint })), "samples/s");
  };

  const timelines = () => {
    if (!data.timelines.length) return;
    const own = panel("Timeline", "The trainer's row, and below it those of the workers. Drag over a stretch to zoom in, double click to see all; Ctrl and the wheel zoom too.");
    const box = element("div", {});
    let shown = null;
    const show = (place) => {
      shown?.remove();
      box.replaceChildren();
      const chosen = data.timelines[place];
      // Microseconds after the run's beginning; lanes are bounded before they come here, too.
      const begins = Math.min(...chosen.lanes.filter((lane) => lane.spans.length).map((lane) => lane.spans[1])) / 1e6;
      const missing = chosen.left_out ? `${count(chosen.left_out)} older ones were left out.` : begins > 1 ? `the first ${seconds(begins)} are not shown.` : "";
      if (missing) box.append(element("p", { className: "quiet" }, `Only the newest spans are in this page: ${missing}`));
      shown = timeline.show(box, chosen, data.activities);
    };
    if (data.timelines.length > 1) {
      const choice = element("select", { ariaLabel: "Configuration", className: "choice" }, ...data.timelines.map((one, place) => element("option", { value: String(place) }, one.name)));
      choice.addEventListener("change", () => show(Number(choice.value)));
      own.append(element("div", { className: "controls" }, element("label", {}, "Configuration: ", choice)));
    }
    own.append(box);
    show(0);
  };

  heading();
  verdict();
  warnings();
  configurations();
  workers();
  stages();
  memory();
  timelines();
  page.append(element("footer", {}, `feedline ${data.version}. This page is complete: it loads nothing.`));
  document.documentElement.dataset.ready = "yes";
})();
