// The dashboard: asks its server once a second for what is new, and draws it.
"use strict";

(() => {
  const { count, seconds, bytes, percent, known, element, table, colour, axis, fitting, plot } = feedline;
  const at = (id) => document.getElementById(id);

  const EVERY = 1000;
  // A stopped process accepts connections and does not answer them.
  const PATIENCE = 4000;
  // Refused for so long: nobody is there any more. It may still come back.
  const ENDED_AFTER = 5000;
  const MOST_POINTS = 3600;
  // More seconds than this between two points are a gap, not a line.
  const GAP = 4;

  // What is known: the newest snapshot, and the columns of its loader's history.
  let now = null;
  // Names of stages are the program's: any word may be one.
  const columns = Object.create(null);
  let stages = Object.create(null);
  // The loader that is shown; and the one that is to be: the user's choice, or the first that was
  // shown in use. It may be closed for a moment, between two epochs.
  let chosen = null;
  let wanted = null;
  let range = 900;

  const COLUMNS = [
    "tick", "time", "samples_per_second", "wait_share", "ready", "most",
    "bytes_per_second", "memory_used", "memory_limit", "process_memory",
  ];
  const forget = () => {
    COLUMNS.forEach((name) => (columns[name] = []));
    stages = Object.create(null);
  };
  forget();

  /** Adds what is new, and lets go of what is older than an hour. */
  const remember = (history) => {
    const length = columns.tick.length;
    const last = columns.tick[length - 1] ?? -1;
    const from = history.tick.findIndex((tick) => tick > last);
    if (from < 0) return;
    for (const name of COLUMNS) columns[name].push(...history[name].slice(from));
    for (const [name, values] of Object.entries(history.stages)) {
      stages[name] ??= new Array(length).fill(null);
      stages[name].push(...values.slice(from));
    }
    const total = columns.tick.length;
    for (const values of Object.values(stages)) while (values.length < total) values.push(null);
    const over = total - MOST_POINTS;
    if (over > 0) [...Object.values(columns), ...Object.values(stages)].forEach((values) => values.splice(0, over));
  };

  /** Time and the given columns of the range that is shown, with holes where nothing was seen. */
  const shown = (sources) => {
    const end = columns.time[columns.time.length - 1] ?? 0;
    const made = [[], ...sources.map(() => [])];
    let before = null;
    columns.time.forEach((time, place) => {
      if (time < end - range) return;
      if (before !== null && time - before > GAP) {
        made[0].push((time + before) / 2);
        sources.forEach((_, number) => made[number + 1].push(null));
      }
      made[0].push(time);
      sources.forEach((values, number) => made[number + 1].push(values[place] ?? null));
      before = time;
    });
    return made;
  };

  const WHOLE = { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] };
  // A line: its name, its colour's name, its values; limits are dashed.
  const CHARTS = [
    {
      title: "Throughput", show: (value) => `${count(value)}/s`, lines: () => [
        { name: "samples", colour: "line-1", values: columns.samples_per_second, fill: true },
      ],
    },
    {
      title: "Waiting", show: percent, top: 1, lines: () => [
        { name: "share of time the trainer waited", colour: "wait", values: columns.wait_share, fill: true },
      ],
    },
    {
      title: "Queue", show: count, whole: true, lines: () => [
        { name: "batches ready", colour: "line-1", values: columns.ready, fill: true, steps: true },
        { name: "room", colour: "memory", values: columns.most, dashed: true },
      ],
    },
    {
      title: "Time of a sample in each stage", show: seconds, lines: () => {
        const own = ["read", "decode", "transform", "copy"];
        return Object.entries(stages).map(([name, values], number) => (
          { name, colour: own.includes(name) ? name : `line-${(number % 8) + 1}`, values }
        ));
      },
    },
    {
      title: "Memory", show: bytes, lines: () => [
        { name: "loader", colour: "line-1", values: columns.memory_used, fill: true },
        { name: "its budget", colour: "wait", values: columns.memory_limit, dashed: true },
        { name: "whole process", colour: "memory", values: columns.process_memory },
      ],
    },
    {
      title: "Reading", show: (value) => `${bytes(value)}/s`, lines: () => [
        { name: "from files", colour: "read", values: columns.bytes_per_second, fill: true },
      ],
    },
  ];

  const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");

  const make_chart = (chart) => {
    const box = element("div", { className: "plot" });
    const legend = element("ul", { className: "swatches" });
    const panel = element("section", { className: "panel chart" }, element("h2", {}, chart.title), legend, box);
    panel.dataset.chart = chart.title;
    at("charts").append(panel);
    const has_values = (line) => line.values.some((value) => value !== null);
    let names = "";
    let lines = [];
    let hovered = null;
    const refresh = () => {
      lines = chart.lines().filter(has_values);
      // What this loader does not report has no chart.
      panel.hidden = lines.length === 0;
      panel.dataset.points = String(columns.time.length);
    };
    const show_legend = () => {
      const data = own?.chart?.data;
      const items = lines.map((line, number) => {
        const values = data?.[number + 1] ?? [];
        const value = hovered === null ? values[values.length - 1] : values[hovered];
        const swatch = element("span", { className: line.dashed ? "swatch dashed" : "swatch" });
        swatch.style[line.dashed ? "borderColor" : "background"] = colour(line.colour);
        return element("li", {}, swatch, `${line.name} ${chart.show(value)}`);
      });
      if (hovered !== null && data) items.push(element("li", { className: "quiet" }, clock(data[0][hovered])));
      legend.replaceChildren(...items);
    };
    const describe = () => ({
      height: 190,
      legend: { show: false },
      cursor: { sync: { key: "feedline" }, y: false, drag: { x: false, y: false } },
      scales: {
        x: { time: true, range: () => {
          const end = columns.time[columns.time.length - 1] ?? Date.now() / 1000;
          const begin = columns.time[0] ?? end;
          return [Math.max(end - range, Math.min(begin, end - 60)), end];
        } },
        y: { range: (_, low, high) => {
          const top = Number.isFinite(high) && high > 0 ? high * 1.08 : 1;
          return [0, chart.top ? Math.min(chart.top, Math.max(top, 0.05)) : top];
        } },
      },
      axes: [
        // With seconds where the marks are closer than a minute, so that no two are the same.
        axis({ values: (_, ticks, __, ___, step) => ticks.map((tick) => clock(tick).slice(0, step < 60 ? 8 : 5)), space: 70, size: 32 }),
        axis({ size: fitting, values: (_, ticks) => ticks.map((tick) => chart.show(tick)), space: 34, ...(chart.whole && WHOLE) }),
      ],
      series: [{}, ...lines.map((line) => ({
        label: line.name,
        stroke: colour(line.colour),
        width: 1.8,
        dash: line.dashed ? [6, 4] : undefined,
        fill: line.fill ? `${colour(line.colour)}26` : undefined,
        paths: line.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
        points: { show: false },
        spanGaps: false,
      }))],
      hooks: { setCursor: [(made) => {
        hovered = made.cursor.idx ?? null;
        show_legend();
      }] },
    });
    let own = null;
    refresh();
    own = plot(box, describe, () => shown(lines.map((line) => line.values)));
    show_legend();
    return () => {
      refresh();
      const now_named = lines.map((line) => line.name).join("\n");
      if (now_named === names) own.chart.setData(shown(lines.map((line) => line.values)));
      else own.remake();
      names = now_named;
      show_legend();
    };
  };

  /** How bad a share of waiting is: the verdict has the same levels. */
  const level_of = (share) => (!known(share) ? "" : share < 0.01 ? "good" : share < 0.1 ? "some" : "bad");

  const tile = (name, value, more = "", share = null, level = "") => {
    const made = element("div", { className: "tile" },
      element("div", { className: "name" }, name), element("div", { className: "value" }, value));
    made.dataset.tile = name;
    if (known(share)) {
      const fill = element("span", {});
      fill.style.width = `${Math.min(100, Math.max(0, share * 100))}%`;
      made.append(element("div", { className: `fill ${level}` }, fill));
    }
    made.append(element("div", { className: "more" }, more));
    return made;
  };

  /** Who makes the batches. */
  const makers = ({ executor, workers }) => {
    if (executor === "inline") return "the program itself";
    const [one, several] = { threads: ["thread", "threads"], processes: ["process", "processes"] }[executor] ?? ["worker", "workers"];
    return `${count(workers)} ${workers === 1 ? one : several}`;
  };

  const show_tiles = (loader) => {
    const { queue, memory } = loader;
    const made = [
      tile("Samples a second", count(loader.samples_per_second),
        known(loader.silent_seconds) ? `no batch for ${seconds(loader.silent_seconds)}` : `${count(loader.samples)} so far`),
      tile("Waited", percent(loader.wait_share),
        loader.waiting_seconds >= 2 ? `this wait: ${seconds(loader.waiting_seconds)} so far` : "of the last seconds",
        loader.wait_share, level_of(loader.wait_share)),
      tile("Wait for a batch", seconds(loader.wait_p50_seconds),
        `p99 ${seconds(loader.wait_p99_seconds)}, longest ${seconds(loader.longest_wait_seconds)}`),
    ];
    if (queue) {
      const making = Math.max(0, queue.open - queue.ready);
      made.push(tile("Queue", `${queue.ready} of ${queue.most}`, `${making} in the making`, queue.most ? queue.ready / queue.most : null));
    }
    if (memory) {
      const share = memory.limit ? memory.used / memory.limit : null;
      made.push(tile("Memory", bytes(memory.used), memory.limit ? `of ${bytes(memory.limit)}` : "no budget", share, share > 0.95 ? "full" : ""));
    }
    made.push(tile("Process", bytes(now.memory),
      known(now.cores_busy) ? `${count(now.cores_busy)} of ${now.cores} cores busy` : `${now.cores} cores`));
    made.push(tile("Batches", count(loader.batches), `of ${count(loader.batch_size)} by ${makers(loader)}`));
    made.push(tile("Quarantined", count(loader.failed), loader.failed ? "samples were replaced" : "no sample failed"));
    at("tiles").replaceChildren(...made);
  };

  const STALL = [["none", "step", "busy"], ["reading", "read", "waiting for bytes"],
    ["preparing", "decode", "waiting for preparation"], ["copying", "copy", "waiting for copies"]];

  const show_verdict = (verdict) => {
    at("verdict").textContent = verdict?.sentence ?? "No batch was handed over yet.";
    at("verdict-panel").dataset.level = level_of(verdict?.wait_share);
    const parts = STALL.filter(([name]) => (verdict?.stall?.[name] ?? 0) > 0.0005);
    at("stall").replaceChildren(...parts.map(([name, paint]) => {
      const part = element("span", {});
      part.style.width = `${verdict.stall[name] * 100}%`;
      part.style.background = colour(paint);
      return part;
    }));
    const texts = parts.map(([name, , text]) => `${text} ${percent(verdict.stall[name])}`);
    at("stall").setAttribute("aria-label", `The trainer's time: ${texts.join(", ")}`);
    at("stall-names").replaceChildren(...parts.map(([, paint], number) => {
      const swatch = element("span", { className: "swatch" });
      swatch.style.background = colour(paint);
      return element("li", {}, swatch, texts[number]);
    }));
    const advice = (verdict?.advice ?? []).slice(0, 3);
    at("advice").replaceChildren(...advice.map(({ text, command, code }) =>
      element("li", {}, text, command || code ? element("code", {}, command || code) : null)));
  };

  const show_quarantined = (loader) => {
    const { failed, quarantined } = loader;
    at("quarantine-panel").hidden = failed === 0;
    at("quarantine-note").textContent = quarantined.length
      ? `${count(failed)} failed and were replaced by others; the latest:`
      : `${count(failed)} failed and were replaced by others. Loader(..., quarantine="bad.jsonl") lists which.`;
    const rows = quarantined.map(({ name, reason }) => [name, reason]);
    at("quarantine").replaceChildren(...(rows.length ? [table(["sample", "why"], rows)] : []));
  };

  const picker = element("select", { hidden: true, ariaLabel: "Loader" });
  picker.addEventListener("change", () => {
    wanted = Number(picker.value);
    chosen = wanted;
    forget();
    // An answer that is on its way is of another loader.
    question += 1;
    ask();
  });
  let listed = "";
  const show_picker = () => {
    const names = now.loaders.map(({ id, name }) => `${id}: ${name}`);
    picker.hidden = names.length < 2;
    if (names.join("\n") !== listed) {
      listed = names.join("\n");
      picker.replaceChildren(...now.loaders.map(({ id }, place) => element("option", { value: String(id) }, names[place])));
    }
    picker.value = String(chosen);
  };

  let charts = [];
  const draw = () => {
    const loader = now.loaders.find(({ id }) => id === chosen);
    const more = now.hidden ? ` · ${count(now.hidden)} more loaders, used longer ago, are not shown` : "";
    at("process").textContent = `process ${now.pid}: ${now.program}${more}`;
    show_picker();
    if (!loader) {
      // Nothing of a closed loader is to be taken for the present.
      say("idle", "no loader is open");
      show_verdict(null);
      at("verdict").textContent = "No loader of this process has handed over a batch yet, or all are closed.";
      at("title").textContent = "feedline";
      document.title = "no loader · feedline";
      at("tiles").replaceChildren();
      at("quarantine-panel").hidden = true;
      return;
    }
    say("live", "live");
    at("title").textContent = loader.name;
    document.title = `${percent(loader.wait_share)} waited · ${loader.name} · feedline`;
    show_verdict(loader.verdict);
    show_tiles(loader);
    show_quarantined(loader);
    charts.forEach((chart) => chart());
  };

  // The state of the connection, in words.
  let failing_since = null;
  const say = (state, text) => {
    at("connection").dataset.state = state;
    at("connection").textContent = text;
    document.body.dataset.stale = state === "live" || state === "connecting" ? "no" : "yes";
  };

  const failed = (hung) => {
    failing_since ??= Date.now();
    // A process that is stopped or very busy takes connections; one that has ended refuses them.
    if (!hung && Date.now() - failing_since >= ENDED_AFTER) {
      say("ended", "the process has ended");
      document.title = "ended · feedline";
    } else say("lost", "reconnecting…");
  };

  /** What the server answers; null if it does not, which is reported. */
  const fetched = async () => {
    const patience = new AbortController();
    const timer = setTimeout(() => patience.abort(), PATIENCE);
    try {
      const open = (id) => id !== null && (now?.loaders ?? []).some((loader) => loader.id === id);
      // Before anything is in use, the server says which one it is.
      const named = open(wanted) ? wanted : wanted !== null && open(chosen) ? chosen : wanted;
      const since = named === chosen ? columns.tick[columns.tick.length - 1] : null;
      const response = await fetch(`data?since=${since ?? ""}${named === null ? "" : `&loader=${named}`}`, { cache: "no-store", signal: patience.signal });
      if (response.status === 403) {
        say("refused", "another process has this address now");
        return null;
      }
      if (!response.ok) throw new Error(`answer ${response.status}`);
      return await response.json();
    } catch (error) {
      failed(error.name === "AbortError");
      return null;
    } finally {
      clearTimeout(timer);
    }
  };

  const take = (answer) => {
    failing_since = null;
    if (now !== null && now.session !== answer.session) {
      // Another process at the same address: nothing of the old one holds.
      forget();
      now = null;
      chosen = null;
      wanted = null;
      question += 1;
      return;
    }
    now = answer;
    if (answer.loader !== undefined && answer.loader !== chosen) {
      forget();
      chosen = answer.loader;
    }
    const shown_now = now.loaders.find(({ id }) => id === chosen);
    if (wanted === null && shown_now?.batches > 0) wanted = chosen;
    // A new loader that goes on with the old one's history takes its place.
    const successor = now.loaders.find(({ earlier }) => earlier?.includes(wanted));
    if (successor) wanted = successor.id;
    if (answer.history) remember(answer.history);
    draw();
  };

  // The number of the question: answers to earlier ones are dropped, and it is asked anew.
  let question = 0;
  let asking = false;
  const ask = async () => {
    if (asking) return;
    asking = true;
    const asked = question;
    try {
      const answer = await fetched();
      if (answer !== null && asked === question) take(answer);
    } catch (error) {
      // The fault of this page, not of the connection.
      say("broken", `this page failed: ${error.message}`);
      console.error(error);
    } finally {
      asking = false;
    }
    if (asked !== question) setTimeout(ask, 0);
  };

  at("controls").prepend(picker);
  at("controls").append(feedline.theme_button());
  const ranges = [["5 min", 300], ["15 min", 900], ["1 hour", 3600]].map(([name, length]) => {
    const button = element("button", { type: "button" }, name);
    const mark = () => button.setAttribute("aria-pressed", String(range === length));
    button.addEventListener("click", () => {
      range = length;
      ranges.forEach((other) => other());
      charts.forEach((chart) => chart());
    });
    at("range").append(button);
    mark();
    return mark;
  });
  charts = CHARTS.map(make_chart);
  ask();
  setInterval(ask, EVERY);
  // A page that was hidden catches up at once.
  document.addEventListener("visibilitychange", () => document.hidden || ask());
})();
