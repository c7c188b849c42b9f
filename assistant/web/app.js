/** Wires the parts together: what the server, the loudspeaker and the user do, to what follows. */

import { Captions } from "./captions.js";
import { Microphone, MicrophoneError, SampleClock } from "./capture.js";
import { Connection } from "./connection.js";
import { byId } from "./dom.js";
import { NOTICES, NoticeBoard } from "./notices.js";
import { WIRE_RATE_HZ, fromBase64 } from "./pcm.js";
import { Player } from "./player.js";
import { Presence } from "./presence.js";
import { Probe } from "./probe.js";
import { Stopwatch } from "./stopwatch.js";
import { Waterfall } from "./waterfall.js";

/** Why an answer may end too early, as the server calls it. */
const CUT_SHORT = { max_output_tokens: "Cut short: the answer reached its length limit." };

const notices = new NoticeBoard(byId("notice"));
const captions = new Captions({
  list: byId("captions"), scroll: byId("scroll"), welcome: byId("welcome"),
});
const presence = new Presence({
  root: byId("presence"), label: byId("state-label"), hint: byId("state-hint"),
});
const waterfall = new Waterfall({ list: byId("turns"), empty: byId("no-turns") });

let context = null; // the AudioContext, made in the user's first gesture
let player = null;
let microphone = null;
let deaf = false; // the last attempt to open or keep a microphone failed
let dropouts = 0;
let questionWaits = false; // in the box, until there is a connection to send it over
const probe = new Probe(() => context?.currentTime ?? null);
window.assistantProbe = probe;

const canSound = window.isSecureContext && "AudioWorkletNode" in window;
const connection = new Connection({
  url: realtimeUrl(),
  spoken: canSound,
  apiKey: new URLSearchParams(location.hash.slice(1)).get("key"),
  onEvent(event) {
    probe.event("in", event);
    serverEvents[event.type]?.(event);
    show();
  },
  onSent: (event) => probe.event("out", event),
  onPhase,
});

/** What belongs to one session, and ends with it. */
class SessionState {
  clock = new SampleClock();
  stopwatch = new Stopwatch();
  items = new Map(); // response id → its assistant item's id
  voiced = new Set(); // responses that audio came for
  harmless = new Set(); // ids of our events that may be refused: the answer ended meanwhile
  userSpeaking = false;
  thinking = false; // a question is asked, its answer does not sound yet
  active = null; // id of the response being made
}
let session = new SessionState();

// -- what the server says -------------------------------------------------------------------

const serverEvents = {
  "input_audio_buffer.speech_started"({ item_id }) {
    session.userSpeaking = true;
    captions.userBegan(item_id);
    player?.flush().then(tellCut);
  },
  "input_audio_buffer.speech_stopped"({ x_speech_end_ms: endMs }) {
    session.userSpeaking = false;
    session.thinking = true;
    // `audio_end_ms` has silence in it, so only our extension says where the voice ended.
    session.stopwatch.asked(endMs === undefined ? null : session.clock.timeAt(endMs));
  },
  "x.transcript.partial": ({ item_id, stable, tentative }) =>
    captions.userSays(item_id, `${stable} ${tentative}`.trim()),
  "x.turn.discarded"({ item_id }) {
    session.userSpeaking = false;
    session.thinking = false;
    captions.remove(item_id);
  },
  "conversation.item.added"({ item }) {
    if (item.role === "assistant") captions.assistantBegan(item.id);
    const written = item.role === "user" && item.content?.find(({ type }) => type === "input_text");
    if (written) captions.userSaid(item.id, written.text);
  },
  "conversation.item.deleted": ({ item_id }) => captions.remove(item_id),
  "conversation.item.input_audio_transcription.delta": ({ item_id, delta }) =>
    captions.userHeard(item_id, delta),
  "conversation.item.input_audio_transcription.completed": ({ item_id, transcript }) =>
    captions.userSaid(item_id, transcript),
  "conversation.item.input_audio_transcription.failed": ({ item_id }) =>
    captions.userSaid(item_id, null),
  "conversation.item.truncated"({ item_id }) {
    tolerant({ type: "conversation.item.retrieve", item_id }); // to show what is left of it
  },
  "conversation.item.retrieved"({ item }) {
    const [part] = item.content ?? [];
    captions.settle(item.id, part?.transcript ?? part?.text ?? "", item.status !== "completed");
  },

  "response.created"({ response }) {
    session.active = response.id;
    session.thinking = true;
    session.stopwatch.answering(response.id);
  },
  "response.output_item.added": ({ response_id, item }) => session.items.set(response_id, item.id),
  "response.output_audio_transcript.delta": ({ item_id, delta }) =>
    captions.assistantWrote(item_id, delta, true),
  "response.output_text.delta"({ item_id, delta }) {
    session.thinking = false;
    captions.assistantWrote(item_id, delta, false);
  },
  "response.output_audio.delta"(event) {
    const pcm = fromBase64(event.delta);
    session.voiced.add(event.response_id);
    captions.assistantVoiced(event.item_id, (pcm.byteLength / 2 / WIRE_RATE_HZ) * 1000);
    openAudio()?.play({
      responseId: event.response_id,
      generation: event.x_generation ?? null,
      startMs: event.x_start_ms ?? null,
      pcm,
    });
  },
  "response.output_audio.done": ({ response_id }) => player?.end(response_id),
  "response.done"({ response: { id, status, status_details: details } }) {
    const itemId = session.items.get(id);
    if (session.active === id) session.active = null;
    const willSound = session.voiced.has(id) && status !== "cancelled" && status !== "failed";
    if (!willSound) session.thinking = false;
    if (status === "cancelled") captions.interrupted(itemId);
    else if (status !== "failed") captions.assistantDone(itemId);
    else captions.failed(itemId, details?.error?.message ?? "The answer failed. Please ask again.");
    if (status === "incomplete") captions.cutShort(itemId, CUT_SHORT[details?.reason]);
  },
  "x.playback.clear": ({ generation }) => player?.clear(generation).then(tellCut),
  "x.turn.timeline"(turn) {
    const measuredTtfaMs = session.stopwatch.ttfaMs(turn.response_id);
    const itemId = session.items.get(turn.response_id);
    if (itemId) captions.settle(itemId, turn.heard, turn.outcome === "interrupted");
    waterfall.add(turn, measuredTtfaMs);
    probe.turn({ ...turn, measuredTtfaMs });
  },
  error({ error }) {
    if (session.harmless.has(error.event_id)) return;
    probe.error(error);
    notices.show("serverError", { detail: error.message });
  },
};

// -- what the loudspeaker does --------------------------------------------------------------

function onPlayer(event) {
  probe.player(event);
  const { type, responseId, positionMs, time } = event;
  if (type === "audible") {
    session.stopwatch.audible(responseId, time + (context.outputLatency || context.baseLatency));
  }
  if (type === "started") session.thinking = session.active !== null && session.active !== responseId;
  if (type === "progress" || type === "started") tellPosition(responseId, positionMs);
  if (type === "finished") {
    // Past the last sample by rounding, never short of it; the server clamps.
    tellPosition(responseId, positionMs + 1);
    captions.finished(session.items.get(responseId));
  }
  if (type === "underrun" || type === "skip") dropouts += 1;
  if (event.targetMs) {
    const lost = dropouts > 0 ? `, dropouts: ${dropouts}` : "";
    byId("buffer").textContent = `Buffer ${Math.round(event.targetMs)} ms${lost}`;
  }
  for (const { level } of event.levels ?? []) presence.level(level);
  show();
}

function tellPosition(responseId, positionMs) {
  const itemId = session.items.get(responseId);
  if (!itemId) return; // silence, or an answer of a session that is over
  captions.played(itemId, positionMs);
  const position_ms = Math.round(positionMs * 1000) / 1000;
  connection.send({ type: "x.playback", response_id: responseId, position_ms });
}

/** Tell the server exactly where the sound broke off, after `stop`, which tells it to stop. */
function tellCut(cut, stop = null) {
  if (cut) tellPosition(cut.responseId, cut.positionMs);
  if (stop) tolerant(stop);
  const itemId = cut && session.items.get(cut.responseId);
  if (!itemId) return;
  captions.interrupted(itemId);
  tolerant({
    type: "conversation.item.truncate",
    item_id: itemId,
    content_index: 0,
    audio_end_ms: Math.floor(cut.positionMs),
  });
}

// -- what the user does ---------------------------------------------------------------------

async function interrupt() {
  if (!interruptible()) return;
  // What plays is flushed, what is being made is cancelled; either may be without the other.
  const cut = (await player?.flush()) ?? null;
  const stop = session.active ? "response.cancel" : "output_audio_buffer.clear";
  session.thinking = false;
  tellCut(cut, { type: stop });
  show();
}

async function ask(text) {
  openAudio();
  if (!connection.isOpen) {
    questionWaits = true;
    notices.show("questionWaits");
    connection.connect();
    return false;
  }
  await interrupt();
  const content = [{ type: "input_text", text }];
  session.stopwatch.asked(context?.state === "running" ? context.currentTime : null);
  connection.send({
    type: "conversation.item.create",
    item: { type: "message", role: "user", content },
  });
  connection.send({ type: "response.create" });
  session.thinking = true;
  notices.clear("serverError");
  show();
  return true;
}

async function startMicrophone() {
  if (!openAudio()) return; // the notice that says why stands already
  notices.clear();
  try {
    microphone = await Microphone.open(context, { onFrame, onLost: loseMicrophone });
    deaf = false;
  } catch (error) {
    if (!(error instanceof MicrophoneError)) throw error;
    deaf = true;
    probe.error(error.message);
    notices.show(error.notice, { onAction: toggleMicrophone });
  }
  show();
}

function stopMicrophone() {
  microphone.close();
  microphone = null;
  presence.level(0);
  show();
}

function loseMicrophone() {
  deaf = true;
  stopMicrophone();
  notices.show("microphoneLost", { onAction: toggleMicrophone });
}

function onFrame({ pcm, time, level }) {
  const samples = pcm.byteLength / 2;
  if (connection.append(pcm)) session.clock.append(samples, time);
  if (!player.playing) presence.level(level);
  probe.input({ time, level });
}

let opening = null; // a second click while the browser asks for permission is not a second start
function toggleMicrophone() {
  if (microphone) stopMicrophone();
  else opening ??= startMicrophone().finally(() => (opening = null));
}

/** Make the context and the player; called in a gesture first, or the browser keeps it silent. */
function openAudio() {
  if (!canSound) return null;
  if (player) {
    if (context.state !== "running") context.resume();
    return player;
  }
  context = new AudioContext({ latencyHint: "interactive" });
  player = new Player(context, onPlayer);
  player.ready.catch((error) => {
    probe.error(String(error));
    notices.show("soundFailed");
  });
  context.onstatechange = watchSound;
  setTimeout(watchSound, 1000);
  return player;
}

function watchSound() {
  if (context.state === "running") notices.clear("soundBlocked");
  else notices.show("soundBlocked", { onAction: () => context.resume() });
}

// -- the line -------------------------------------------------------------------------------

function onPhase({ phase, resumed, reason }) {
  const labels = { connecting: "Connecting", open: "Connected", waiting: "Not connected" };
  document.querySelector(".link").dataset.phase = phase;
  byId("link-label").textContent = labels[phase];
  if (phase === "open") {
    beginSession();
    notices.clear("loading", "unreachable", "refused", "full", "lost", "idle", "questionWaits");
    if (!canSound) notices.show("insecure");
    if (resumed) captions.divide("Reconnected. A new conversation begins here.");
    if (questionWaits) byId("ask").requestSubmit();
    questionWaits = false;
  }
  if (phase === "waiting") {
    beginSession();
    const onAction = () => connection.connect();
    if (questionWaits) notices.show("questionWaits", { detail: NOTICES[reason].title, onAction });
    else notices.show(reason, { onAction });
  }
  show();
}

function beginSession() {
  session = new SessionState();
  probe.capturedAt = (ms) => session.clock.timeAt(ms);
  player?.reset();
}

/** Send what the server may rightly refuse, because the answer can end while it is on its way. */
function tolerant(event) {
  session.harmless.add(connection.send(event));
}

function realtimeUrl() {
  const url = new URL("v1/realtime", location.href);
  url.protocol = url.protocol.replace("http", "ws");
  url.hash = "";
  return url;
}

// -- the page -------------------------------------------------------------------------------

function interruptible() {
  return Boolean(player?.playing) || session.active !== null || session.thinking;
}

function show() {
  presence.show({
    connected: connection.isOpen,
    microphone: microphone !== null,
    deaf: deaf || !canSound,
    userSpeaking: session.userSpeaking,
    thinking: session.thinking,
    speaking: Boolean(player?.playing),
  });
  byId("interrupt").setAttribute("aria-disabled", String(!interruptible()));
  byId("microphone").dataset.on = String(microphone !== null);
  byId("microphone-label").textContent = microphone ? "Stop microphone" : "Start microphone";
}

byId("microphone").addEventListener("click", toggleMicrophone);
byId("interrupt").addEventListener("click", interrupt);
document.addEventListener("keydown", ({ key }) => {
  if (key === "Escape") interrupt();
});
byId("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const box = byId("question");
  const text = box.value.trim();
  if (text !== "" && (await ask(text)) && box.value.trim() === text) box.value = "";
});
window.addEventListener("online", () => connection.connect());

connection.connect();
