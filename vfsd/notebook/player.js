// The browser's side of vfsd.notebook.Player.  Text goes into text nodes only: names and labels
// come from files.

const COLORS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"];
const CACHED = 96; // frames kept; the oldest is dropped
const AHEAD = 16; // frames asked for before they are shown

function color(label) {
  let hash = 0;
  for (const char of label) hash = (hash * 31 + char.codePointAt(0)) >>> 0;
  return COLORS[hash % COLORS.length];
}

function element(kind, parent, text, title) {
  const made = document.createElement(kind);
  if (text) made.textContent = text;
  if (title) made.title = title;
  parent.appendChild(made);
  return made;
}

function render({ model, el }) {
  const first = model.get("first"), end = model.get("end"), fps = model.get("fps");
  const scaleX = model.get("width"), scaleY = model.get("height");
  const cache = new Map(), asked = new Map();
  let at = model.get("frame"), playing = null, closed = false;

  const root = element("div", el);
  root.tabIndex = 0;
  root.style.cssText = "display:inline-block;font:13px sans-serif;outline-offset:2px";
  const heading = element("div", root, model.get("name"));
  heading.style.cssText = "font-weight:bold;padding:2px 0";
  const canvas = element("canvas", root);
  canvas.style.cssText = "display:block;max-width:100%;background:#000";
  const bar = element("div", root);
  bar.style.cssText = "display:flex;gap:6px;align-items:center;padding:4px 0";
  const back = element("button", bar, "\u25c0", "one frame back (left arrow)");
  const play = element("button", bar, "Play", "play or pause (space)");
  const forth = element("button", bar, "\u25b6", "one frame on (right arrow)");
  const slider = element("input", bar);
  slider.type = "range";
  slider.min = first;
  slider.max = end - 1;
  slider.value = at;
  slider.setAttribute("aria-label", "frame");
  slider.style.flex = "1";
  const shown = element("input", bar);
  shown.type = "checkbox";
  shown.checked = true;
  shown.title = "boxes";
  shown.setAttribute("aria-label", "boxes");
  const status = element("div", root);
  status.setAttribute("role", "status");

  async function keep(facts, data) {
    const picture = await createImageBitmap(new Blob([data], { type: "image/jpeg" }));
    asked.delete(facts.frame);
    cache.set(facts.frame, { facts, picture });
    while (cache.size > CACHED) {
      const oldest = cache.keys().next().value;
      cache.get(oldest).picture.close();
      cache.delete(oldest);
    }
    if (facts.frame === at) draw();
  }

  function want(from) {
    const now = performance.now();
    for (let start = from; start < Math.min(end, from + AHEAD); start++) {
      // A message can get lost with its kernel: ask again after a while.
      if (cache.has(start) || now - (asked.get(start) ?? -1e9) < 10000) continue;
      let count = 0;
      while (count < model.get("most") && start + count < end && !cache.has(start + count)) {
        asked.set(start + count, now);
        count++;
      }
      model.send({ type: "frames", first: start, count });
      start += count - 1;
      if (!playing) return;
    }
  }

  function draw() {
    const found = cache.get(at);
    slider.value = at;
    if (!found) return;
    const { facts, picture } = found;
    canvas.width = picture.width;
    canvas.height = picture.height;
    const pen = canvas.getContext("2d");
    pen.drawImage(picture, 0, 0);
    const x = picture.width / scaleX, y = picture.height / scaleY;
    pen.lineWidth = 2;
    pen.font = "12px sans-serif";
    for (const [x1, y1, x2, y2, label, confidence] of shown.checked ? facts.boxes : []) {
      pen.strokeStyle = pen.fillStyle = color(label);
      pen.strokeRect(x1 * x, y1 * y, (x2 - x1) * x, (y2 - y1) * y);
      const text = confidence === null ? label : `${label} ${confidence.toFixed(2)}`;
      const top = Math.max(14, y1 * y);
      pen.fillRect(x1 * x - 1, top - 14, pen.measureText(text).width + 6, 14);
      pen.fillStyle = "#000";
      pen.fillText(text, x1 * x + 2, top - 3);
    }
    const damaged = facts.damaged ? ", damaged" : "";
    status.textContent =
      `frame ${at}, ${facts.seconds.toFixed(3)} s, ${facts.boxes.length} boxes${damaged}`;
  }

  function go(frame) {
    at = Math.min(end - 1, Math.max(first, frame));
    if (cache.has(at)) draw();
    want(at);
    if (model.get("frame") !== at) {
      model.set("frame", at);
      if (!playing) model.save_changes();
    }
  }

  function pause() {
    clearInterval(playing);
    playing = null;
    play.textContent = "Play";
    model.save_changes();
  }

  function toggle() {
    if (playing) return pause();
    if (at >= end - 1) go(first);
    play.textContent = "Pause";
    // Waits where the next frame has not arrived: no frame is left out.
    playing = setInterval(() => {
      if (at >= end - 1) return pause();
      cache.has(at + 1) ? go(at + 1) : want(at + 1);
    }, 1000 / fps);
    want(at);
  }

  back.onclick = () => go(at - 1);
  forth.onclick = () => go(at + 1);
  play.onclick = toggle;
  slider.oninput = () => go(Number(slider.value));
  shown.onchange = draw;
  root.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) go(at + step);
    else if (event.key === " " && event.target === root) toggle();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  function receive(message, buffers) {
    if (closed) return;
    if (message.type === "frame") keep(message, buffers[0]);
    if (message.type === "error") {
      asked.delete(message.frame);
      if (playing) pause();
      status.textContent = message.text;
    }
  }

  function moved() {
    if (model.get("frame") !== at) go(model.get("frame"));
  }

  model.on("msg:custom", receive);
  model.on("change:frame", moved);
  keep(model.get("poster_facts"), model.get("poster")).then(() => go(at));

  return () => {
    closed = true;
    clearInterval(playing);
    model.off("msg:custom", receive);
    model.off("change:frame", moved);
    for (const { picture } of cache.values()) picture.close();
  };
}

export default { render };
