"use strict";
(() => {
  const table = document.querySelector("table.results");
  const body = table.tBodies[0];
  const headings = [...table.querySelectorAll("thead th[aria-sort]")];
  const status = document.getElementById("said");
  // A missing value is no number and goes last either way; so does NaN, of a run that diverged.
  const read = (row, place) => {
    const text = row.cells[place].dataset.value;
    if (place === 0) return text;
    return { "": NaN, nan: NaN, inf: Infinity, "-inf": -Infinity }[text] ?? Number(text);
  };
  const compare = (a, b, sign) => {
    if (typeof a === "string") return sign * a.localeCompare(b);
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
    return a === b ? 0 : sign * (a < b ? -1 : 1);
  };
  headings.forEach((heading, place) => {
    const button = heading.querySelector("button");
    button.addEventListener("click", () => {
      const now = heading.getAttribute("aria-sort");
      const turned = now === "ascending" ? "descending" : "ascending";
      const order = now === "none" ? button.dataset.first : turned;
      headings.forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      [...body.rows]
        .sort((a, b) => compare(read(a, place), read(b, place), sign))
        .forEach((row) => body.append(row));
      status.textContent = `Sorted by ${button.dataset.name}, ${order}.`;
    });
  });
})();
(() => {
  // Charts: what the curves are at the stop nearest to the pointer, or to where the arrow keys went.
  const status = document.getElementById("said");
  const make = (kind, name, text) => {
    const element = document.createElement(kind);
    element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const percent = (share) => `${100 * share}%`;
  const nearest = (stops, x) =>
    stops.reduce((best, stop, place) => (Math.abs(stop[0] - x) < Math.abs(stops[best][0] - x) ? place : best), 0);

  document.querySelectorAll(".chart").forEach((chart) => {
    const panels = JSON.parse(chart.dataset.panels);
    let [panel, stop] = [0, -1];
    const clear = () => chart.querySelectorAll(".rule, .dot, .tip").forEach((each) => each.remove());
    const show = () => {
      clear();
      const [, top, , bottom, name, stops] = panels[panel];
      const [x, title, readings] = stops[stop];
      const rule = make("div", "rule");
      Object.assign(rule.style, { left: percent(x), top: percent(top), height: percent(bottom - top) });
      const tip = make("div", "tip");
      tip.append(make("p", "", title), make("p", "", name));
      const rows = readings.map(([label, text, colour, dashed, y]) => {
        const row = make("div", dashed ? "dashed" : "");
        const swatch = make("i", "");
        swatch.style.borderColor = colour;
        row.append(swatch, make("span", "", label), make("b", "", text));
        const dot = make("div", "dot");
        Object.assign(dot.style, { left: percent(x), top: percent(y), color: colour });
        if (y >= top && y <= bottom) chart.append(dot);
        return row;
      });
      tip.append(...rows);
      chart.append(rule, tip);
      const room = chart.clientWidth - tip.offsetWidth;
      const wish = x * chart.clientWidth + (x > 0.5 ? -tip.offsetWidth - 14 : 14);
      tip.style.left = `${Math.max(0, Math.min(room, wish))}px`;
      tip.style.top = percent(top);
    };
    const say = () => {
      const [, title, readings] = panels[panel][5][stop];
      status.textContent = `${panels[panel][4]}. ${title}. ${readings.map(([label, text]) => `${label} ${text}`).join("; ")}`;
    };
    chart.addEventListener("pointermove", (event) => {
      if (!panels.length) return;
      const box = chart.getBoundingClientRect();
      const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
      panel = Math.max(0, panels.findLastIndex((each) => y >= each[1] - 0.05));
      stop = nearest(panels[panel][5], x);
      show();
    });
    chart.addEventListener("pointerleave", clear);
    chart.addEventListener("blur", clear);
    chart.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return clear();
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      const turn = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if ((step === undefined && turn === undefined) || !panels.length) return;
      event.preventDefault();
      panel = Math.max(0, Math.min(panels.length - 1, panel + (turn ?? 0)));
      const last = panels[panel][5].length - 1;
      stop = stop < 0 ? last : Math.max(0, Math.min(last, stop + (step ?? 0)));
      show();
      say();
    });
  });

  // Pictures: one slider for all tiles.
  document.querySelectorAll(".compare").forEach((compare) => {
    const slider = compare.querySelector("input");
    const which = compare.querySelector("output");
    const count = Number(compare.dataset.count);
    let picture = 0;
    const wipe = () => {
      const value = Number(slider.value);
      const [hard, soft] = [Math.min(1, value), Math.max(0, value - 1)];
      const edge = value > 1 ? soft : hard;
      compare.style.setProperty("--hard", hard);
      compare.style.setProperty("--soft", soft);
      compare.style.setProperty("--edge", edge);
      compare.style.setProperty("--line-shown", edge > 0 && edge < 1 ? "block" : "none");
      const names = { 0: "input", 1: "hard", 2: "soft" };
      const [left, right] = value > 1 ? ["soft", "hard"] : ["hard", "input"];
      slider.setAttribute("aria-valuetext", names[value] ?? `${Math.round(100 * edge)} % ${left}, the rest ${right}`);
    };
    const turn = (step) => {
      picture = (picture + step + count) % count;
      compare.style.setProperty("--picture", picture);
      which.textContent = `Picture ${picture + 1} of ${count}`;
      compare.querySelectorAll(".tile").forEach((tile) => {
        for (const part of ["hard", "soft"]) {
          const shown = tile.querySelector(`.psnr-${part}`);
          if (shown) shown.textContent = JSON.parse(tile.dataset[part])[picture];
        }
      });
    };
    slider.addEventListener("input", wipe);
    compare.querySelectorAll("[data-wipe]").forEach((button) =>
      button.addEventListener("click", () => {
        slider.value = button.dataset.wipe;
        wipe();
      }));
    compare.querySelectorAll("[data-turn]").forEach((button) =>
      button.addEventListener("click", () => turn(Number(button.dataset.turn))));
    wipe();
  });

  // The atlas: which code, how often, and the codes nearest to it.
  document.querySelectorAll(".map").forEach((map) => {
    const cells = JSON.parse(map.dataset.cells);
    const [columns, total] = [Number(map.dataset.columns), Number(map.dataset.total)];
    const rows = Math.ceil(cells.length / columns);
    const card = map.parentElement.querySelector(".card");
    const image = map.querySelector("img");
    let now = -1;
    const crop = (cell, name) => {
      const box = make("div", name);
      const copy = image.cloneNode();
      Object.assign(copy.style, {
        width: percent(columns), height: percent(rows),
        left: percent(-(cell % columns)), top: percent(-Math.floor(cell / columns)),
      });
      box.append(copy);
      return box;
    };
    const mark = (cell, name) => {
      const box = make("div", name);
      Object.assign(box.style, {
        width: percent(1 / columns), height: percent(1 / rows),
        left: percent((cell % columns) / columns), top: percent(Math.floor(cell / columns) / rows),
      });
      map.append(box);
    };
    const clear = () => map.querySelectorAll(".mark").forEach((each) => each.remove());
    const show = (cell, aloud) => {
      if (cell < 0 || cell >= cells.length) return;
      now = cell;
      clear();
      const [code, tokens, averaged, near] = cells[cell];
      near.forEach((each) => mark(each, "mark near"));
      mark(cell, "mark");
      const share = (100 * tokens / total).toFixed(2);
      const text = `Code ${code}: ${tokens.toLocaleString("en")} tokens, ${share} %. ` +
        (averaged ? `Mean of ${averaged.toLocaleString("en")} patches. ` : "Never chosen on the pictures averaged here. ") +
        `Nearest: ${near.map((each) => cells[each][0]).join(", ") || "none"}.`;
      card.replaceChildren(crop(cell, "crop large"), make("p", "", text), ...near.map((each) => crop(each, "crop")));
      if (aloud) status.textContent = text;
    };
    map.addEventListener("pointermove", (event) => {
      const box = map.getBoundingClientRect();
      const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
      const cell = Math.floor(y * rows) * columns + Math.min(columns - 1, Math.floor(x * columns));
      if (cell !== now) show(cell, false);
    });
    map.addEventListener("blur", clear);
    map.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      show(now < 0 ? 0 : now + step, true);
    });
  });
})();
