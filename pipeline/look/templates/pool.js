// The parts of the page that change: threshold, histograms, images, search. The data are in the
// element #data; texts reach the page as textContent only.
const data = JSON.parse(document.getElementById("data").textContent);
const byName = new Map(data.columns.map(column => [column.name, column]));
const $ = id => document.getElementById(id);
const whole = number => number.toLocaleString("en-US");
const percent = (part, all) => (all ? (100 * part / all).toFixed(2) : "0") + " %";

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function shape(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const view = () => $("view").value;
const short = value => {
  const size = Math.abs(value);
  if (size >= 1e6) return +(value / 1e6).toPrecision(3) + "M";
  if (size >= 1e4) return +(value / 1e3).toPrecision(3) + "k";
  return String(+value.toPrecision(3));
};

// --- histograms -----------------------------------------------------------------------------

function drawHistogram(column, width, height, threshold) {
  const { edges, counts, kept, cut } = column.histogram;
  const ofView = view() ? kept[view()] : null;
  const base = height - 18, top = Math.max(1, ...counts);
  const x = value => (value - edges[0]) / (edges.at(-1) - edges[0] || 1) * width;
  const bars = counts.map((count, i) => {
    const left = x(edges[i]), wide = Math.max(0.5, x(edges[i + 1]) - left - 0.6);
    const parts = [];
    let y = base;
    const stack = ofView ? [[ofView[i], "kept"], [count - ofView[i], "rejected"]]
      : [[count, "kept"]];
    for (const [rows, kind] of stack) {
      const high = rows ? Math.max(1, rows / top * (base - 6)) : 0;
      y -= high;
      parts.push(shape("rect", { x: left, y, width: wide, height: high, class: kind }));
    }
    const range = `${short(edges[i])} to ${short(edges[i + 1])}: ${whole(count)}`;
    const title = shape("title", {}, ofView ? `${range}, kept ${whole(ofView[i])}` : range);
    return shape("g", {}, title, ...parts);
  });
  const name = `${column.name} of ${whole(column.n)} stored rows`;
  const svg = shape("svg", {
    viewBox: `-4 0 ${width + 8} ${height}`, role: "img", "aria-label": name, class: "fit bars",
  }, ...bars);
  const label = (at, text, anchor) => shape("text", { x: at, y: height - 3, "text-anchor": anchor },
    text.replace("-", "\u2212"));
  svg.append(shape("line", { x1: 0, x2: width, y1: base, y2: base, class: "axis" }),
    label(0, (cut[0] ? "≤ " : "") + short(edges[0]), "start"),
    label(width, (cut[1] ? "≥ " : "") + short(edges.at(-1)), "end"));
  if (threshold !== undefined) {
    const at = Math.min(width, Math.max(0, x(threshold)));
    svg.append(shape("line", { x1: at, x2: at, y1: 0, y2: base, class: "mark" }));
  }
  return svg;
}

function showHistograms() {
  const cells = data.columns.filter(column => column.histogram).map(column => {
    const missing = [];
    if (column.nulls) missing.push(`${whole(column.nulls)} NULL`);
    if (column.nans) missing.push(`${whole(column.nans)} NaN`);
    const note = missing.length ? ` (${missing.join(", ")})` : "";
    const title = make("b", {}, column.name);
    return make("figure", { class: "histogram" }, drawHistogram(column, 360, 120),
      make("figcaption", { title: column.meaning }, title, note));
  });
  $("histograms").replaceChildren(...cells);
}

// --- threshold ------------------------------------------------------------------------------

const sums = new Map(); // rows below each threshold, by column and view

function below(column, name) {
  const key = JSON.stringify([column.name, name]);
  if (!sums.has(key)) {
    let sum = 0;
    sums.set(key, column.scopes[name].steps.map(step => (sum += step)));
  }
  return sums.get(key);
}

const inScope = (image, name, column) => {
  if (!name) return true;
  const of = data.views.find(one => one.name === name);
  return of.others.includes(column) ? image.passes[name].includes(column)
    : image.rules[name] === null;
};

function nearestImages(column, name, threshold) {
  const shown = data.images.filter(image =>
    image.values[column.name] !== null && inScope(image, name, column.name));
  const value = image => image.values[column.name];
  shown.sort((a, b) => value(a) - value(b));
  const low = shown.filter(image => value(image) < threshold);
  const high = shown.filter(image => value(image) >= threshold);
  return { low: low.slice(-6).reverse(), high: high.slice(0, 6) };
}

function fileAnswer(column, name, index) {
  const scope = column.scopes[name];
  const text = column.thresholds[index];
  return {
    threshold: text, index, below: below(column, name)[index], values: scope.values,
    rows: scope.rows, ...(data.server ? {} : nearestImages(column, name, Number(text))),
  };
}

// The last threshold that is not above a number, and whether it is that number.
function indexOf(column, number) {
  let low = 0, high = column.thresholds.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (Number(column.thresholds[middle]) <= number) low = middle; else high = middle - 1;
  }
  return low;
}

let waiting = null, running = false, imagesLater = 0;
const PAUSE = 150; // ms that a slider rests before its images are asked for

async function askServer(query) {
  waiting = query;
  if (running) return;
  running = true;
  try {
    while (waiting) {
      const sent = waiting;
      waiting = null;
      const answer = await getJson("/count?" + new URLSearchParams(sent));
      if (answer) {
        showAnswer(byName.get(sent.column), sent.view, answer, true);
      }
    }
  } finally {
    running = false;
  }
}

async function getJson(path, state = "state") {
  try {
    const response = await fetch(path);
    const answer = await response.json();
    if (response.ok) return answer;
    $(state).textContent = answer.error;
  } catch {
    $(state).textContent = "The server does not answer: start pipeline/look.py again.";
  }
  return null;
}

function ruleName(column, name, replaced) {
  if (replaced.length === 1) return replaced[0].split(".").at(-1);
  return column.name.replace(/\W+/g, "_") + ($("side").value === "least" ? "_min" : "_max");
}

function showAnswer(column, name, answer, typed = false) {
  const atLeast = $("side").value === "least";
  const count = atLeast ? answer.values - answer.below : answer.below;
  const replaced = name ? column.replaced[name] : [];
  $("count").textContent = whole(count);
  $("share").textContent = `of ${whole(answer.rows)} rows `
    + (name ? "that pass the other rules" : "stored") + `: ${percent(count, answer.rows)}`
    + (name ? `; of all ${whole(data.stored)} stored rows: ${percent(count, data.stored)}` : "");
  const nan = atLeast && column.nans ? ` AND NOT isnan(${column.sql})` : "";
  const condition = `${column.sql} ${atLeast ? ">=" : "<"} ${answer.threshold}${nan}`;
  const text = `- ${ruleName(column, name, replaced)}: ${JSON.stringify(condition)}`;
  $("rule").textContent = /["\\]/.test(condition) ? text
    : `- ${ruleName(column, name, replaced)}: ${condition}`;
  if (!typed) $("number").value = answer.threshold;
  $("slider").setAttribute("aria-valuetext", `${answer.threshold}, keeps ${whole(count)} rows`);
  if (answer.index !== undefined) $("slider").value = answer.index;
  $("chart").replaceChildren(drawHistogram(column, Math.min(720, innerWidth - 36), 200,
    Number(answer.threshold)));
  if (answer.low) {
    showImages($("low"), answer.low, column);
    showImages($("high"), answer.high, column);
  }
  const others = name ? data.views.find(one => one.name === name) : null;
  const rest = others ? others.rules.filter(rule => !replaced.includes(rule)) : [];
  $("others").textContent = !name ? "All stored rows are counted, whatever the rules of a view do."
    : (replaced.length ? `In place of ${replaced.join(", ")}. ` : "")
      + `Rows are counted that pass ${rest.join(", ") || "no other rule"}.`;
}

function moveThreshold() {
  const column = byName.get($("column").value);
  const answer = fileAnswer(column, view(), Number($("slider").value));
  showAnswer(column, view(), answer);
  if (!data.server) return;
  clearTimeout(imagesLater);
  const query = { column: column.name, view: view(), value: answer.threshold };
  imagesLater = setTimeout(() => askServer(query), PAUSE);
}

function typeThreshold() {
  const column = byName.get($("column").value);
  const text = $("number").value.trim();
  $("typed").textContent = "";
  if (!text || !Number.isFinite(Number(text))) {
    $("typed").textContent = text ? "This is no number." : "";
    return;
  }
  clearTimeout(imagesLater);
  if (data.server) {
    askServer({ column: column.name, view: view(), value: text });
    return;
  }
  const index = indexOf(column, Number(text));
  const exact = Number(column.thresholds[index]) === Number(text);
  const answer = fileAnswer(column, view(), index);
  showAnswer(column, view(), answer, true);
  if (exact) return;
  const sum = below(column, view()), all = column.scopes[view()].values;
  const next = index + 1 < sum.length ? sum[index + 1] : all;
  const least = $("side").value === "least";
  const ends = least ? [all - next, all - sum[index]] : [sum[index], next];
  $("typed").textContent = `${text} keeps ${whole(ends[0])} to ${whole(ends[1])} rows. Shown is `
    + `${answer.threshold}, the nearest threshold below that this file counts exactly.`;
}

function chooseColumn() {
  const column = byName.get($("column").value);
  const most = column.thresholds.length - 1;
  $("slider").max = Math.max(0, most);
  const limits = (column.marks || {})[view()] || Object.values(column.marks || {})[0] || [];
  $("slider").value = limits.length ? indexOf(column, limits[0]) : Math.round(most * 0.7);
  $("meaning").textContent = column.meaning || "";
  $("typed").textContent = "";
  $("marks").textContent = "";
  const marks = (column.marks || {})[view()] || [];
  const texts = marks.map(value => String(+value.toPrecision(6)));
  if (texts.length) $("marks").textContent = `Threshold of ${view()}: ${texts.join(", ")}. `;
  moveThreshold();
}

// --- images ---------------------------------------------------------------------------------

function picture(image, column) {
  const source = data.server ? `/image/${image.shard}/${image.row}` : image.src;
  const words = image.caption || "(no caption)";
  const place = `shard ${image.shard}, row ${image.row}, uid ${image.uid}`;
  const none = () => make("div", { class: "none" }, "this image cannot be shown");
  let shown = none();
  if (source) {
    shown = make("img", { src: source, alt: words, loading: "lazy", title: place });
    shown.addEventListener("error", () => shown.replaceWith(none()));
  }
  const caption = make("figcaption", { dir: "auto" }, words);
  if (column) {
    const value = image.values[column.name];
    caption.prepend(make("b", {}, value === null ? "NULL" : String(+value.toPrecision(6))), " ");
  }
  if (data.similar) {
    const button = make("button", { type: "button", class: "alike" }, "most alike");
    button.addEventListener("click", () => showAlike(image));
    caption.append(make("br"), button);
  }
  return make("figure", {}, shown, caption);
}

function showImages(place, images, column) {
  place.replaceChildren(...images.map(image => picture(image, column)));
  if (!images.length) place.append(make("p", { class: "note" }, "no image on this side"));
}

function showGallery() {
  const parts = [];
  for (const group of data.groups) {
    if (group.view !== view()) continue;
    parts.push(...groupParts(group));
  }
  $("gallery").replaceChildren(...parts);
}

function groupParts(group) {
  const shots = make("div", { class: "shots" });
  showImages(shots, group.images.map(number => data.images[number]));
  for (const number of group.survivors) {
    const caption = shots.children[group.images.indexOf(number)].querySelector("figcaption");
    caption.prepend(make("b", {}, "survives"), " ");
  }
  const title = `${group.title}: ${group.images.length} of ${whole(group.of)}`;
  return [make("h3", {}, title), shots];
}

let asked = "";

async function search() {
  const text = $("search").value.trim();
  asked = text;
  if (!text) {
    $("hits").textContent = "";
    $("results").replaceChildren();
    return;
  }
  let images, count, of;
  if (data.server) {
    const answer = await getJson("/search?" + new URLSearchParams({ text, view: view() }));
    if (!answer || asked !== text) return;
    ({ images, count } = answer);
    of = "captions of the pool";
  } else {
    const wanted = text.toLowerCase();
    images = data.images.filter(image => image.caption.toLowerCase().includes(wanted)
      && (!view() || image.rules[view()] === null));
    count = images.length;
    of = `the ${data.images.length} images in this file`;
  }
  const kept = view() ? ` that ${view()} keeps` : "";
  $("hits").textContent = `${whole(count)} of ${of}${kept} contain it.`;
  showImages($("results"), images.slice(0, 60));
}

async function showAlike(image) {
  const answer = await getJson(`/similar?shard=${image.shard}&row=${image.row}`);
  if (!answer) return;
  $("alike-of").textContent = `Most like: ${image.caption || image.uid}`;
  showImages($("alike"), answer.images);
  $("alike-of").scrollIntoView({ block: "start" });
}

async function findLike(event) {
  event.preventDefault();
  const text = $("like-text").value.trim();
  if (!text) return;
  $("like-state").textContent = "The model of the embeddings is asked; the first time it is loaded.";
  $("like").querySelector("button").disabled = true;
  const answer = await getJson("/like?" + new URLSearchParams({ text }), "like-state");
  $("like").querySelector("button").disabled = false;
  if (!answer) return;
  $("like-state").textContent = `The ${answer.images.length} nearest of the embeddings.`;
  $("alike-of").textContent = `Most like: ${text}`;
  showImages($("alike"), answer.images);
}

// --- start ----------------------------------------------------------------------------------

function showAll() {
  $("key").hidden = !view();
  showHistograms();
  showGallery();
  if ($("column").options.length) chooseColumn();
  search();
}

if (!data.server) {
  $("nearest").textContent = `The nearest of the ${data.images.length} images in this file.`;
}
$("view").addEventListener("change", showAll);
$("search").addEventListener("input", search);
if ($("like")) $("like").addEventListener("submit", findLike);
if ($("column").options.length) {
  $("column").addEventListener("change", chooseColumn);
  $("side").addEventListener("change", moveThreshold);
  $("slider").addEventListener("input", () => {
    $("typed").textContent = "";
    moveThreshold();
  });
  $("number").addEventListener("input", typeThreshold);
  $("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText($("rule").textContent);
      $("copied").textContent = "copied";
    } catch {
      getSelection().selectAllChildren($("rule"));
      $("copied").textContent = "selected: copy it with the keyboard";
    }
  });
}
if ($("copies")) {
  const group = one => make("div", { class: "group" }, ...groupParts(one));
  $("copies").replaceChildren(...data.copies.map(group));
}
showAll();
