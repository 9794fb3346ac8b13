// What the page does beyond plain links and forms. Everything here is an addition: reading works without it.
import { followChanges } from "./live.js";

const find = (selector, root = document) => root.querySelector(selector);
const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];
const SEARCH_DELAY_MS = 140;
const LIVE_DELAY_MS = 250;
const LIVE_PAUSE_MS = 2_000; // between two updates, and LIVE_REST times as long as the last one took
const LIVE_REST = 4;
const IN_USE_DELAY_MS = 1_000;
const POLL_MS = 700;

// --- forms -----------------------------------------------------------------------------------------------------------

// The link hands over the secret of the forms. Unlike cookies, which go to every port of a host, it is of this one alone.
if (location.hash.startsWith("#form_token=")) {
  localStorage.setItem("form_token", location.hash.slice("#form_token=".length));
  history.replaceState(null, "", location.pathname + location.search);
}

document.addEventListener("submit", (event) => {
  const field = event.target.elements.namedItem("form_token");
  if (field) field.value = localStorage.getItem("form_token") ?? "";
});

// --- colours, menu, help, copy -------------------------------------------------------------------------------------

function showTheme() {
  const choice = localStorage.getItem("theme") ?? "auto";
  for (const button of findAll("[data-theme-choice]")) {
    button.setAttribute("aria-pressed", String(button.dataset.themeChoice === choice));
  }
}

function chooseTheme(choice) {
  localStorage.setItem("theme", choice);
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  showTheme();
}

function toggleMenu(open) {
  const side = find("#side");
  const isOpen = side?.classList.toggle("open", open);
  find("[data-menu]")?.setAttribute("aria-expanded", String(Boolean(isOpen)));
  if (isOpen) find("a", side)?.focus();
}

document.addEventListener("click", (event) => {
  const target = event.target.closest("button, a, input");
  if (target?.dataset.themeChoice) chooseTheme(target.dataset.themeChoice);
  if (target?.matches("[data-menu]")) return toggleMenu();
  if (target?.matches("[data-back]") && history.length > 1) { // what was typed is still there
    event.preventDefault();
    return history.back();
  }
  if (target?.matches("[data-help]")) find("#help").showModal();
  if (target?.dataset.copy !== undefined) {
    navigator.clipboard?.writeText(target.dataset.copy);
    target.classList.add("done");
    announce("Copied");
  }
  if (find("#side.open") && !event.target.closest("#side")) toggleMenu(false);
  if (target?.matches("[data-pick-all]")) {
    for (const box of findAll("[data-pick]")) box.checked = target.checked;
    countPicked();
  }
});

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  if (event.target.matches("[data-pick]")) countPicked();
});

document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});

function announce(text) {
  const box = document.createElement("div");
  box.className = "notice";
  box.textContent = text;
  find("#notices")?.append(box);
  setTimeout(() => box.remove(), 1600);
}

// --- search as you type ------------------------------------------------------------------------------------------------

let searchTimer = null;
let liveTimer;
let searchAbort;

function nameFold(fold) {
  return `${fold.closest("[data-id]")?.dataset.id ?? ""} ${find("summary", fold)?.textContent ?? ""}`;
}

function findRow(part, id) {
  return findAll("[data-row]", part).find((row) => row.dataset.id === id);
}

async function refreshPart(address, { keep = false } = {}) {
  const part = find("#part");
  if (!part) return;
  searchAbort?.abort();
  searchAbort = new AbortController();
  try {
    const reply = await fetch(address, { headers: { "x-athena-part": "1" }, signal: searchAbort.signal });
    if (reply.status === 401) return location.reload();
    if (keep && reply.status >= 500) return; // busy or about to stop: what is shown stays
    const picked = new Set(findAll("[data-pick]:checked").map((box) => box.value));
    const text = await reply.text();
    const known = new Set(findAll("[data-id]", part).map((row) => row.dataset.id));
    const [current, focused] = [find("[data-row].at", part), document.activeElement?.closest?.("[data-id]")];
    const unfolded = new Set(findAll("details[open]", part).map(nameFold));
    part.innerHTML = text;
    if (keep) for (const fold of findAll("details", part)) fold.open ||= unfolded.has(nameFold(fold));
    loadAreas(part);
    if (current) findRow(part, current.dataset.id)?.classList.add("at");
    if (focused && keep) find("a[data-open]", findRow(part, focused.dataset.id) ?? part)?.focus({ preventScroll: true });
    for (const box of findAll("[data-pick]", part)) box.checked = picked.has(box.value);
    if (keep) for (const row of findAll("[data-id]", part)) row.classList.toggle("new", !known.has(row.dataset.id));
    countPicked();
  } catch (error) {
    if (error.name !== "AbortError" && !(error instanceof TypeError)) throw error; // the latter: no server answers
  }
}

function searchSoon(box) {
  const instant = find("form[data-instant]");
  const question = instant && find("[name=q]", instant); // the box at the top fills it in
  if (!instant || (box.form !== instant && !(question && box.form?.matches(".top-search")))) return;
  if (box.form !== instant) question.value = box.value;
  clearTimeout(searchTimer);
  searchTimer = setTimeout(() => {
    searchTimer = null;
    const fields = [...new FormData(instant)].filter(([, value]) => value !== "");
    const address = `${instant.getAttribute("action")}?${new URLSearchParams(fields)}`;
    if (instant.dataset.quiet === undefined) history.replaceState(null, "", address);
    refreshPart(address);
  }, SEARCH_DELAY_MS);
}

document.addEventListener("input", (event) => searchSoon(event.target));

// Who opens a form to write wants to write at once. The event comes late: who has already gone into a field stays there.
document.addEventListener("toggle", (event) => {
  const text = event.target.open && event.target.matches("[data-write]") && find("textarea", event.target);
  if (!text || text.form.contains(document.activeElement)) return;
  text.focus();
  text.setSelectionRange(text.value.length, text.value.length);
}, true);

// What is only needed once it is unfolded is fetched then.
document.addEventListener("toggle", (event) => {
  const part = event.target.open && find("#part[data-unfold]", event.target);
  if (part && !part.childElementCount) refreshPart(part.dataset.unfold);
}, true);

// --- select many -------------------------------------------------------------------------------------------------------

function countPicked() {
  const count = findAll("[data-pick]:checked").length;
  const bar = find(".picked-bar");
  if (!bar) return;
  bar.classList.toggle("on", count > 0);
  const text = find("[data-picked-count]", bar);
  if (text) text.textContent = count === 1 ? "1 selected" : `${count} selected`;
}

// --- keyboard ----------------------------------------------------------------------------------------------------------

const PLACES = { h: "/", m: "/memories", t: "/timeline", p: "/programs", g: "/graph", k: "/tasks" };
let lastKey = "";

function moveInList(step) {
  const rows = findAll("[data-row]");
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("at"));
  const next = rows[Math.min(rows.length - 1, Math.max(0, at + step))] ?? rows[0];
  for (const row of rows) row.classList.toggle("at", row === next);
  next.scrollIntoView({ block: "nearest" });
  (find("a[data-open]", next) ?? next).focus({ preventScroll: true });
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && find("#side.open")) return toggleMenu(false);
  const written = event.target.closest?.("details[data-write]");
  if (written && event.key === "Enter" && (event.ctrlKey || event.metaKey)) return event.target.form?.requestSubmit();
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (written && event.key === "Escape") { // what was typed stays in it
    written.open = false;
    return find("summary", written).focus();
  }
  if (event.target.matches("input:not([type=checkbox]), textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (find("dialog[open]")) return;
  const current = find("[data-row].at");
  const before = lastKey;
  lastKey = event.key;
  if (before === "g" && PLACES[event.key]) {
    const link = findAll("nav a").find((item) => new URL(item.href).pathname === PLACES[event.key]);
    if (link) location.href = link.href;
    return;
  }
  const actions = {
    "/": () => find("#search")?.focus(),
    "?": () => find("#help")?.showModal(),
    j: () => moveInList(1),
    k: () => moveInList(-1),
    e: () => (find("[data-edit]", current ?? document) ?? find("[data-edit]"))?.click(),
    x: () => find("[data-pick]", current ?? document)?.click(),
    u: () => find("[data-undo]")?.click(),
  };
  if (actions[event.key]) {
    event.preventDefault();
    actions[event.key]();
  }
});

// --- live --------------------------------------------------------------------------------------------------------------

let isStale = false;
let refreshedAt = -LIVE_PAUSE_MS;
let refreshMs = 0;

// Not while somebody chooses or writes: they would lose it.
function isInUse(part) {
  return Boolean(find(".picked-bar.on") || find("details[open] form:not([method=get])", part) || find("input:focus, textarea:focus, select:focus", part));
}

function refreshSoon() {
  const part = find("#part[data-live-part]");
  if (!part) return;
  isStale = true;
  clearTimeout(liveTimer);
  const waitMs = Math.max(LIVE_DELAY_MS, refreshedAt + Math.max(LIVE_PAUSE_MS, LIVE_REST * refreshMs) - performance.now());
  liveTimer = setTimeout(refreshNow, waitMs);
}

async function refreshNow() {
  const part = find("#part[data-live-part]");
  if (!isStale || document.hidden || searchTimer) return; // a tab in the background waits until it is looked at
  if (isInUse(part)) return void (liveTimer = setTimeout(refreshNow, IN_USE_DELAY_MS));
  isStale = false;
  const began = performance.now();
  await refreshPart(location.href, { keep: true });
  refreshedAt = performance.now();
  refreshMs = refreshedAt - began;
}

document.addEventListener("visibilitychange", () => !document.hidden && isStale && refreshSoon());

followChanges(document.body, (change) => {
  refreshSoon();
  const run = find("[data-run]");
  if (run && change.runs.some((other) => other.run_id === run.dataset.run)) checkRun(run);
});

// The news may be older than the page: only what the server says now counts.
async function checkRun(run) {
  const reply = await fetch(location.href, { headers: { "x-athena-part": "1" } }).catch(() => null);
  const area = document.createElement("template");
  area.innerHTML = reply?.ok ? await reply.text() : "";
  const status = area.content.querySelector("[data-status]")?.dataset.status;
  if (status && status !== run.dataset.status) location.reload();
}

// --- what takes long to count comes later; a program that runs is asked again ------------------------------------------

const loaded = new Map();

async function loadAreas(root) {
  for (const area of findAll("[data-load]", root)) {
    const address = area.dataset.load;
    if (!loaded.has(address)) {
      const reply = await fetch(address, { headers: { "x-athena-part": "1" } }).catch(() => null);
      loaded.set(address, reply?.ok ? await reply.text() : "");
    }
    if (area.isConnected && loaded.get(address)) area.innerHTML = loaded.get(address);
  }
}

async function followRun() {
  while (find("#part[data-poll]")) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    await refreshPart(location.href, { keep: true });
    const state = find("#part [data-status]");
    if (state && state.dataset.status !== find("[data-run]")?.dataset.status) return location.reload();
    const output = find("#part [data-tail]");
    if (output) output.scrollTop = output.scrollHeight;
  }
}

loadAreas(document);
followRun();
showTheme();
countPicked();
const typed = find("#search"); // before this script was there
const asked = find("form[data-instant] [name=q]");
if (typed && asked && typed.value !== asked.value) searchSoon(typed);
const named = document.getElementById(location.hash.slice(1));
if (named?.matches("details[data-write]")) named.open = true;
