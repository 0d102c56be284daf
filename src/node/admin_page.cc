#include "node/admin_page.h"

namespace kvist {

// clang-format off
std::string_view admin_page() {
  return R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Kvist node</title>
<style>
:root {
  --page: #f6f7f8; --card: #fff; --ink: #16202a; --soft: #5b6875; --line: #dfe4e8; --accent: #0f7b6c; --bad: #b3261e; --warn: #9a6700;
  --blocks: #0f7b6c; --granted: #2f6fde; --other: #9a6700; --free: #c9d2d9; --unpopulated: #eceff2;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12171c; --card: #1a2127; --ink: #e7edf2; --soft: #93a1ad; --line: #2b353e; --accent: #3cc2ac; --bad: #ff7b72; --warn: #e3b341;
    --blocks: #2fae98; --granted: #5b94f5; --other: #d0a03c; --free: #3a4650; --unpopulated: #242d35;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 16px; display: grid; gap: 16px; grid-template-columns: minmax(0, 1fr); }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 14px; }
h1 { font-size: 20px; margin: 0; }
h2 { font-size: 13px; font-weight: 600; margin: 0 0 10px; color: var(--soft); }
.soft { color: var(--soft); overflow-wrap: anywhere; }
.badge { padding: 1px 10px; border-radius: 99px; background: var(--accent); color: var(--card); font-weight: 600; font-size: 13px; }
.badge.bad { background: var(--bad); } .badge.warn { background: var(--warn); }
.cards { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 200px), 1fr)); }
.two { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); align-items: start; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px; min-width: 0; }
.big { font-size: 26px; font-weight: 650; font-variant-numeric: tabular-nums; line-height: 1.15; }
.note { color: var(--soft); font-size: 13px; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: 38px; margin-top: 8px; }
svg path { fill: none; stroke: var(--accent); stroke-width: 2; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
.bar { display: flex; gap: 2px; height: 22px; border-radius: 6px; overflow: hidden; }
.bar i { display: block; min-width: 0; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin-top: 8px; font-size: 13px; font-variant-numeric: tabular-nums; }
.legend b { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
.pool + .pool { margin-top: 16px; }
.blocks { background: var(--blocks); } .granted { background: var(--granted); } .other { background: var(--other); }
.free { background: var(--free); } .unpopulated { background: var(--unpopulated); }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; font-size: 13px; color: var(--soft); padding: 3px 8px; white-space: nowrap; }
td { text-align: right; padding: 4px 8px; border-top: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; overflow-wrap: anywhere; }
th:last-child, td:last-child { padding-right: 0; }
#stages td:first-child { white-space: nowrap; }
.narrow { display: none; }
.gone .big, .gone .note, .gone svg, .gone table, .gone .pool { opacity: .4; }
@media (max-width: 560px) { main { padding: 10px; gap: 10px; } .cards, .two { gap: 10px; } .wide { display: none; } .narrow { display: inline; } .big { font-size: 22px; } td, th { padding-left: 4px; padding-right: 4px; }
  .cards { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
</style>
</head>
<body>
<main>
<header>
  <h1>Kvist node</h1><span id="state" class="badge warn">asking</span><span id="about" class="soft"></span>
</header>
<div class="cards">
  <section><h2>Hit rate</h2><div class="big" id="hit">–</div><div class="note" id="hit-note"></div><svg id="hit-line" viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="Hit rate of the last two minutes"><path/></svg></section>
  <section><h2>Read</h2><div class="big" id="read">–</div><div class="note" id="read-note"></div><svg id="read-line" viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="Bytes read a second, last two minutes"><path/></svg></section>
  <section><h2>Stored</h2><div class="big" id="put">–</div><div class="note" id="put-note"></div><svg id="put-line" viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="Bytes stored a second, last two minutes"><path/></svg></section>
  <section><h2>Evicted</h2><div class="big" id="evict">–</div><div class="note" id="evict-note"></div><svg id="evict-line" viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="Blocks evicted a second, last two minutes"><path/></svg></section>
</div>
<section><h2>Capacity by state</h2><div id="pools"></div></section>
<div class="two">
  <section><h2>Time of each stage, last minute</h2><div class="table"><table><thead><tr><th>stage</th><th>a second</th><th>p50 below</th><th>p99 below</th></tr></thead><tbody id="stages"></tbody></table></div></section>
  <section><h2>What failed or was refused, since the start</h2><div class="table"><table><tbody id="failures"></tbody></table></div></section>
</div>
<section><h2 id="clients-title">Clients</h2><div class="table"><table><thead><tr><th>client</th><th class="wide">pid</th><th class="wide">user</th><th class="wide">domain</th><th>hits</th><th>misses</th><th>read</th><th class="wide">pinned</th><th class="wide">granted</th></tr></thead><tbody id="clients"></tbody></table></div></section>
</main>
<script>
"use strict";
const at = id => document.getElementById(id);
const text = (id, value) => { at(id).textContent = value; };
const unit = (value, names, step) => {
  let i = 0;
  while (value >= step && i + 1 < names.length) { value /= step; ++i; }
  return (value >= 100 || (i === 0 && Number.isInteger(value)) ? value.toFixed(0) : value.toFixed(value >= 10 ? 1 : 2)) + names[i];
};
const bytes = value => unit(value, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"], 1024);
const count = value => unit(value, ["", " k", " M", " G", " T"], 1000);
const seconds = value => !isFinite(value) ? "> 1 s" : value < 1e-3 ? unit(value * 1e6, [" µs"], 1e9) : value < 1 ? unit(value * 1e3, [" ms"], 1e9) : unit(value, [" s"], 1e9);
const percent = value => isFinite(value) ? (100 * value).toFixed(1) + " %" : "–";

// Prometheus' text: name -> [{labels, value}]
function parse(body) {
  const families = {};
  for (const line of body.split("\n")) {
    const match = /^([a-z_:]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const label of (match[2] || "").matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)) labels[label[1]] = label[2].replace(/\\(.)/g, (_, c) => c === "n" ? "\n" : c);
    (families[match[1]] ||= []).push({labels, value: match[3] === "+Inf" ? Infinity : Number(match[3])});
  }
  return families;
}
const sum = (families, name, wanted = {}) => (families[name] || []).filter(s => Object.entries(wanted).every(([k, v]) => s.labels[k] === v)).reduce((all, s) => all + s.value, 0);

function look(families) {
  const now = {time: performance.now() / 1000, stages: {}};
  now.hits = sum(families, "kvist_reads_total", {result: "hit"});
  now.misses = sum(families, "kvist_reads_total", {result: "miss"});
  now.read = sum(families, "kvist_read_bytes_total");
  now.stored = sum(families, "kvist_stored_bytes_total");
  now.blocks = sum(families, "kvist_commits_total", {result: "stored"});
  now.evicted = sum(families, "kvist_evicted_blocks_total");
  for (const s of families.kvist_stage_seconds_bucket || []) (now.stages[s.labels.stage] ||= []).push([s.labels.le === "+Inf" ? Infinity : Number(s.labels.le), s.value]);
  return now;
}

const history = [];      // looks of the last minute and a bit
const lines = {hit: [], read: [], put: [], evict: []};

function draw(id, value, most) {
  const line = lines[id];
  line.push(value);
  if (line.length > 120) line.shift();
  const top = most || Math.max(1e-9, ...line.filter(isFinite));
  let path = "", pen = "M";
  line.forEach((v, i) => {
    if (!isFinite(v)) { pen = "M"; return; }
    path += pen + (100 * (i + 120 - line.length) / 119).toFixed(2) + " " + (97 - 94 * Math.min(1, v / top)).toFixed(2);
    pen = "L";
  });
  at(id + "-line").firstElementChild.setAttribute("d", path);
}

function row(cells, classes = []) {
  const tr = document.createElement("tr");
  cells.forEach((cell, i) => {
    const td = document.createElement("td");
    td.append(cell);  // text, or an element
    if (classes[i]) td.className = classes[i];
    tr.append(td);
  });
  return tr;
}

function quantile(buckets, part) {
  const all = buckets[buckets.length - 1][1];
  return (buckets.find(b => b[1] >= part * all) || [Infinity])[0];
}

function show_rates(now) {
  const before = history[history.length - 1];
  text("hit-note", percent(now.hits / (now.hits + now.misses)) + " since the start");
  text("read-note", bytes(now.read) + " in all");
  text("put-note", count(now.blocks) + " blocks, " + bytes(now.stored) + " in all");
  text("evict-note", count(now.evicted) + " blocks in all");
  if (!before) return;
  const t = now.time - before.time, looked = now.hits - before.hits + now.misses - before.misses;
  text("hit", looked > 0 ? percent((now.hits - before.hits) / looked) : "no reads");
  text("read", bytes((now.read - before.read) / t) + "/s");
  text("put", bytes((now.stored - before.stored) / t) + "/s");
  text("evict", count((now.evicted - before.evicted) / t) + "/s");
  draw("hit", looked > 0 ? (now.hits - before.hits) / looked : NaN, 1);
  draw("read", (now.read - before.read) / t);
  draw("put", (now.stored - before.stored) / t);
  draw("evict", (now.evicted - before.evicted) / t);
}

function show_stages(now) {
  const before = history[0];
  const rows = Object.entries(now.stages).map(([stage, buckets]) => {
    const old = before && before.stages[stage];
    const fresh = buckets.map(([le, value], i) => [le, value - (old ? old[i][1] : 0)]);
    const all = fresh[fresh.length - 1][1];
    const rate = before ? all / (now.time - before.time) : 0;
    return row([stage, before ? count(rate) : "–", all > 0 ? seconds(quantile(fresh, 0.5)) : "–", all > 0 ? seconds(quantile(fresh, 0.99)) : "–"]);
  });
  at("stages").replaceChildren(...rows);
}

function show_pools(families) {
  const pools = (families.kvist_pool_capacity_bytes || []).map(pool => {
    const domain = pool.labels.domain, box = document.createElement("div"), title = document.createElement("div");
    const bar = document.createElement("div"), legend = document.createElement("div");
    box.className = "pool"; bar.className = "bar"; legend.className = "legend"; title.className = "note";
    title.textContent = (domain ? "domain " + domain + ": " : "") + bytes(pool.value) + ", " + count(sum(families, "kvist_pool_entries", {domain, state: "live"})) + " blocks";
    for (const s of (families.kvist_pool_bytes || []).filter(s => s.labels.domain === domain)) {
      const part = document.createElement("i"), item = document.createElement("span"), dot = document.createElement("b");
      part.className = dot.className = s.labels.state;
      part.style.flex = String(s.value / pool.value) + " 0 0";
      if (s.value > 0) bar.append(part);
      item.append(dot, s.labels.state + " " + bytes(s.value));
      legend.append(item);
    }
    box.append(title, bar, legend);
    return box;
  });
  at("pools").replaceChildren(...pools);
}

const failing = /^kvist_(client_failures|request_failures|grants_refused|bad_blocks|garbage_pins|index_full|accept_failures|populate_failures|refused_reports|unknown_requests)_total$/;
const ends = new Set(["death", "disconnect", "hello_timeout", "version", "token", "domain", "credentials", "too_many_sessions", "too_many_for_user", "too_many_pins", "no_memory", "malformed", "oversized", "slow_reader", "socket_error"]);
function show_failures(families) {
  const rows = [];
  for (const [name, samples] of Object.entries(families)) {
    for (const s of samples) {
      const reason = s.labels.reason || s.labels.code || "";
      const ended = name === "kvist_sessions_ended_total" && ends.has(reason);
      if (s.value > 0 && (failing.test(name) || ended)) {
        rows.push(row([name.slice(6, -6).replaceAll("_", " ") + (reason ? ": " + reason.toLowerCase().replaceAll("_", " ") : "") + (s.labels.domain ? " (" + s.labels.domain + ")" : ""), count(s.value)]));
      }
    }
  }
  at("failures").replaceChildren(...(rows.length ? rows : [row(["nothing", ""])]));
}

// Clients of one name can be told apart where there is no column for the pid.
function client_name(c) {
  const name = document.createElement("span"), pid = document.createElement("span");
  pid.className = "narrow soft";
  pid.textContent = " pid " + c.pid;
  name.append((c.name || "?") + (c.state === "connected" ? "" : " (" + c.state + ")"), pid);
  return name;
}

function show_clients(clients) {
  text("clients-title", clients.length === 1 ? "1 client" : clients.length + " clients");
  const classes = ["", "wide", "wide", "wide", "", "", "", "wide", "wide"];
  const shown = [...clients].sort((a, b) => b.bytes_got - a.bytes_got).slice(0, 50);
  const rows = shown.map(c => row([client_name(c), c.pid, c.uid, c.domain || "–", count(c.hits), count(c.misses), bytes(c.bytes_got), bytes(c.pinned_bytes), bytes(c.granted_bytes)], classes));
  if (clients.length > shown.length) rows.push(row(["and " + (clients.length - shown.length) + " more"]));
  at("clients").replaceChildren(...rows);
}

function badge(state, kind) {
  text("state", state);
  at("state").className = "badge" + (kind ? " " + kind : "");
}

async function ask(path) {
  const answer = await fetch(path, {cache: "no-store", signal: AbortSignal.timeout(5000)});
  if (!answer.ok) throw new Error(path + " " + answer.status);
  return answer;
}

async function turn() {
  try {
    const [metrics, stat, clients] = await Promise.all([ask("metrics").then(a => a.text()), ask("stat").then(a => a.json()), ask("clients").then(a => a.json())]);
    const families = parse(metrics), now = look(families);
    show_rates(now);
    show_stages(now);
    show_pools(families);
    show_failures(families);
    show_clients(clients.clients);
    history.push(now);
    while (now.time - history[0].time > 60) history.shift();
    badge(stat.state, stat.state === "ready" ? "" : "warn");
    const hours = stat.uptime_s / 3600;
    document.body.classList.remove("gone");
    text("about", "version " + stat.version + ", up " + (stat.uptime_s < 60 ? stat.uptime_s.toFixed(0) + " s" : hours < 1 ? (60 * hours).toFixed(0) + " min" : hours < 48 ? hours.toFixed(1) + " h" : (hours / 24).toFixed(1) + " days") + ", " + stat.socket);
    document.body.dataset.turns = Number(document.body.dataset.turns || 0) + 1;  // for tests, like the width
    document.body.dataset.width = innerWidth + " of " + document.documentElement.scrollWidth;
  } catch (error) {
    badge("no answer", "bad");
    document.body.classList.add("gone");  // what is shown was
    text("about", String(error.message || error));
  }
  setTimeout(turn, document.hidden ? 10000 : 1000);
}
turn();
</script>
</body>
</html>
)html";
}
// clang-format on

}  // namespace kvist
