// The copy button, the updates and the plot. The rest of the pages works without a script.
"use strict";

// Browsers offer the clipboard only to pages from this machine or over TLS.
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = !navigator.clipboard;
}

// A link that changes while the mouse button is down would lead elsewhere when it is released, so
// updates wait for the release. The browser may not report it, if a menu is open.
let pressed = false;
const waiting = [];
function whenReleased(act) {
  if (pressed || waiting.length) waiting.push(act);
  else act();
}
addEventListener("pointerdown", (event) => { pressed = event.button === 0; });
for (const name of ["pointerup", "pointercancel", "contextmenu", "blur"]) {
  addEventListener(name, () => {
    pressed = false;
    // The click comes first.
    setTimeout(() => { while (waiting.length && !pressed) waiting.shift()(); });
  });
}

// A live part is changed only where it differs, not replaced: the scroll position of a table, the
// focus and a selected text stay.
function patch(old, fresh) {
  const before = [...old.childNodes];
  const after = [...fresh.childNodes];
  after.forEach((node, place) => {
    const there = before[place];
    if (!there) {
      old.append(node);
    } else if (there.nodeName !== node.nodeName) {
      there.replaceWith(node);
    } else if (node instanceof Element) {
      for (const { name } of [...there.attributes]) {
        if (!node.hasAttribute(name)) there.removeAttribute(name);
      }
      for (const { name, value } of node.attributes) {
        if (there.getAttribute(name) !== value) there.setAttribute(name, value);
      }
      patch(there, node);
    } else if (there.data !== node.data) {
      there.data = node.data;
    }
  });
  before.slice(after.length).forEach((node) => node.remove());
}
// The functions that take the data of parts without markup, by the element of the part.
const takers = new Map();

function show(part, data) {
  const taker = takers.get(part);
  if (taker) {
    taker(data);
    return;
  }
  const fresh = document.createElement("template");
  fresh.innerHTML = data;
  patch(part, fresh.content);
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

// The plot: a line for each outcome, in the colours of the style sheet.
(() => {
  const place = document.getElementById("plot");
  if (!place) return;
  const names = JSON.parse(place.dataset.names);
  const span = Number(place.dataset.span);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const high = () => (innerWidth < 700 ? 150 : 220);
  let plot = null;
  let data = null;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 16);
  const day = (seconds) => new Date(seconds * 1000).toISOString().slice(5, 10);

  function draw() {
    const axis = {
      stroke: colour("--soft"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
    };
    const label = span > 172800 ? day : clock;
    plot?.destroy();
    place.replaceChildren();
    plot = new uPlot({
      width: place.clientWidth,
      height: high(),
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: true }, y: { range: (_, low, top) => [0, Math.max(1, top * 1.1)] } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      axes: [
        { ...axis, values: (_, at) => at.map(label), space: 70, size: 30 },
        { ...axis, values: (_, at) => at.map((one) => short.format(one)), size: 44 },
      ],
      series: [{}, ...names.map((name, number) => ({
        label: name,
        stroke: colour(`--k${number}`),
        width: number === 0 ? 2 : 1.5,
        points: { show: false },
      }))],
    }, data, place);
  }

  async function load() {
    const answer = await fetch(place.dataset.from);
    if (!answer.ok) return;
    data = await answer.json();
    // Again when the stream opens: an existing plot stays, and gets the new points.
    if (plot) plot.setData(data);
    else draw();
  }

  // A point with the time of the last one replaces it; points older than the span are removed.
  takers.set(place, (text) => {
    if (!data) return;
    const point = JSON.parse(text);
    const times = data[0];
    if (times.length && point[0] < times.at(-1)) return;
    if (times.length && point[0] === times.at(-1)) data.forEach((column) => column.pop());
    data.forEach((column, number) => column.push(point[number]));
    while (times[0] < point[0] - span) data.forEach((column) => column.shift());
    plot?.setData(data);
  });
  document.addEventListener("live", load);
  dark.addEventListener("change", () => data && draw());
  new ResizeObserver(() => plot?.setSize({ width: place.clientWidth, height: high() })).observe(place);
  load();
})();

// Milliseconds before the next attempt, if the server refuses the connection.
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 64_000;
let source = null;
let pause = FIRST_PAUSE;

// A browser opens at most six connections to one address, and a live page holds one. So a hidden
// page closes its connection; otherwise a seventh page could not be opened.
function connect() {
  if (document.hidden) {
    source?.close();
    source = null;
  }
  if (document.hidden || source) return;
  source = new EventSource(document.body.dataset.live);
  for (const part of document.querySelectorAll("[data-part]")) {
    source.addEventListener(part.dataset.part, (event) => {
      whenReleased(() => show(part, event.data));
    });
  }
  source.onopen = () => {
    pause = FIRST_PAUSE;
    document.dispatchEvent(new Event("live"));
  };
  source.onerror = (event) => {
    if (event.target !== source) return;
    tellNotLive();
    // The browser repairs a broken connection by itself, but repeats no refused one.
    if (source.readyState !== EventSource.CLOSED) return;
    source = null;
    setTimeout(connect, pause);
    pause = Math.min(2 * pause, LONGEST_PAUSE);
  };
}

// Without a connection, the health that is shown may be out of date.
function tellNotLive() {
  const health = document.getElementById("health");
  health.className = "harm";
  health.textContent = "This page is not live now: the dashboard does not answer, or was started "
    + "anew. If it stays so, open the link of its last start.";
  document.querySelector("[data-part=state]").textContent = "Not live";
}

if (document.body.dataset.live) {
  document.addEventListener("visibilitychange", connect);
  connect();
}
