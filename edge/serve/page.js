// The page of `edge serve`: a chat with one of its models, or a transcript by it, over the address that other programs
// use, too.

const at = (id) => document.getElementById(id);
const NAMES = { user: "You", assistant: "Answer", transcript: "Transcript" };
const DECODER = "decoder", TEXT = "text", SPEECH = "speech"; // kinds of models
const RATE = 16000; // samples a second, as models hear

let messages = [];
let kinds = {}; // of models, by their names
let stopping = null; // what ends the answer that is under way
let recorder = null; // while the microphone is on

const kind = () => kinds[at("model").value] ?? DECODER;

function headers(type = "application/json") {
  const key = at("key").value.trim();
  return { ...(type ? { "Content-Type": type } : {}), ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

function tell(sentence) {
  at("state").textContent = sentence;
}

async function refused(response) {
  try {
    const { error } = await response.json();
    return error.message ?? String(error);
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

async function listModels() {
  const chosen = at("model").value;
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (!response.ok) {
      if (response.status === 401) at("settings").open = true;
      return tell(await refused(response));
    }
    const data = (await response.json()).data.filter((each) => [DECODER, TEXT, SPEECH].includes(each.kind));
    kinds = Object.fromEntries(data.map((each) => [each.id, each.kind]));
    at("model").replaceChildren(...data.map(({ id }) => new Option(id, id, false, id === chosen)));
    tell("");
    buttons(false);
  } catch {
    tell("The server cannot be reached.");
  }
}

function put(role) {
  const article = document.createElement("article");
  article.className = role;
  const name = document.createElement("h2");
  name.textContent = NAMES[role];
  const said = document.createElement("div");
  said.className = "said";
  article.append(name, said);
  if (role !== "user") article.append(copyButton(said));
  at("talk").append(article);
  return article;
}

function copyButton(said) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.hidden = true; // until all is there
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(said.textContent);
    } catch { // pages of other machines have no clipboard without https
      getSelection().selectAllChildren(said);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return button;
}

function show(article, text, thoughts) {
  const said = article.querySelector(".said");
  if (thoughts) {
    let details = article.querySelector("details");
    if (!details) {
      details = document.createElement("details");
      const summary = document.createElement("summary");
      summary.textContent = "Thoughts";
      details.append(summary, document.createTextNode(""));
      said.before(details);
    }
    details.lastChild.data = thoughts;
  }
  const talk = at("talk");
  const below = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 60;
  said.textContent = text;
  if (below) talk.scrollTop = talk.scrollHeight;
}

function buttons(busy) {
  const hears = kind() === SPEECH;
  for (const each of document.querySelectorAll("[data-for]")) each.hidden = !each.dataset.for.split(" ").includes(kind());
  at("model").disabled = busy || recorder !== null;
  at("send").hidden = busy || hears;
  at("stop").hidden = !busy;
  at("again").hidden = busy || hears || messages.at(-1)?.role !== "assistant";
  at("record").hidden = busy || !hears || !navigator.mediaDevices;
  at("record").textContent = recorder ? "Stop recording" : "Record";
  at("sound").hidden = busy || !hears || recorder !== null;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
    }
  }
}

function asked() {
  if (kind() === TEXT) return JSON.stringify({ model: at("model").value, prompt: messages.at(-1).content });
  const system = at("system").value.trim();
  const body = {
    model: at("model").value,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    stream: true,
    stream_options: { include_usage: true },
  };
  if (at("temperature").value !== "") body.temperature = Number(at("temperature").value);
  if (at("most").value !== "") body.max_tokens = Number(at("most").value);
  return JSON.stringify(body);
}

async function answer() {
  tell("");
  stopping = new AbortController();
  buttons(true);
  const article = put("assistant");
  article.setAttribute("aria-busy", "true");
  let text = "", thoughts = "", usage = null, first = 0, last = 0, finish = null;
  try {
    const path = kind() === TEXT ? "v1/completions" : "v1/chat/completions";
    const response = await fetch(path, { method: "POST", headers: headers(), body: asked(), signal: stopping.signal });
    if (!response.ok) throw new Error(await refused(response));
    if (kind() === TEXT) { // which comes whole
      text = (await response.json()).choices[0].text;
      show(article, text, "");
      return;
    }
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      const choice = event.choices[0];
      if (!choice) continue;
      const { content, reasoning_content: thought } = choice.delta;
      finish = choice.finish_reason ?? finish;
      if (!content && !thought) continue;
      last = performance.now();
      first ||= last;
      text += content ?? "";
      thoughts += thought ?? "";
      show(article, text, thoughts);
    }
  } catch (error) {
    if (error.name !== "AbortError") tell(error.message);
  } finally {
    if (text || thoughts) messages.push({ role: "assistant", content: text });
    const seconds = (last - first) / 1000;
    const speed = seconds > 0 ? `, ${((usage?.completion_tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
    const end = finish === "length" ? "; cut at the limit" : "";
    finished(article, text || thoughts, usage && `${usage.completion_tokens} tokens${speed}${end}`);
  }
}

function finished(article, text, figures) {
  article.removeAttribute("aria-busy");
  article.querySelector(".copy").hidden = false;
  if (!text) article.remove();
  if (figures) {
    const told = document.createElement("p");
    told.className = "figures";
    told.textContent = figures;
    article.append(told);
  }
  stopping = null;
  buttons(false);
}

// Speech: what the microphone or a file has is made a WAV file of one channel here, so that the server decodes nothing.

async function waveOf(blob) {
  let sound;
  try {
    sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await blob.arrayBuffer());
  } catch {
    throw new Error("This browser finds no sound in that.");
  }
  const bytes = new DataView(new ArrayBuffer(44 + 2 * sound.length));
  const put4 = (place, letters) => [...letters].forEach((each, i) => bytes.setUint8(place + i, each.charCodeAt(0)));
  put4(0, "RIFF");
  bytes.setUint32(4, bytes.byteLength - 8, true);
  put4(8, "WAVEfmt ");
  bytes.setUint32(16, 16, true); // bytes of the form: plain samples, one channel, so many a second, 16 bits
  [[20, 1], [22, 1], [32, 2], [34, 16]].forEach(([place, value]) => bytes.setUint16(place, value, true));
  bytes.setUint32(24, RATE, true);
  bytes.setUint32(28, 2 * RATE, true);
  put4(36, "data");
  bytes.setUint32(40, 2 * sound.length, true);
  const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
  for (let i = 0; i < sound.length; i++) {
    const sample = channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length;
    bytes.setInt16(44 + 2 * i, Math.max(-32768, Math.min(32767, Math.round(sample * 32768))), true);
  }
  return { wave: new Blob([bytes], { type: "audio/wav" }), seconds: sound.duration };
}

async function transcribe(blob) {
  tell("");
  stopping = new AbortController();
  buttons(true);
  const article = put("transcript");
  article.setAttribute("aria-busy", "true");
  let text = "", figures = "";
  try {
    const { wave, seconds } = await waveOf(blob);
    const form = new FormData();
    form.append("file", wave, "sound.wav");
    form.append("model", at("model").value);
    form.append("stream", "true");
    if (at("language").value.trim()) form.append("language", at("language").value.trim());
    const asked = { method: "POST", headers: headers(null), body: form, signal: stopping.signal };
    const response = await fetch("v1/audio/transcriptions", asked);
    if (!response.ok) throw new Error(await refused(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      text = event.text ?? text + event.delta;
      show(article, text, "");
      if (event.text !== undefined) figures = `${seconds.toFixed(1)} s of sound`;
    }
    if (!text) tell("No speech was heard.");
  } catch (error) {
    if (error.name !== "AbortError") tell(error.message);
  }
  finished(article, text, figures);
}

async function record() {
  if (recorder) return recorder.stop();
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  } catch (error) {
    const why = error.name === "NotFoundError" ? "There is no microphone" : "This page may not use the microphone";
    return tell(`${why}; choose a sound file instead.`);
  }
  tell("");
  const pieces = [];
  recorder = new MediaRecorder(stream);
  recorder.addEventListener("dataavailable", ({ data }) => pieces.push(data));
  recorder.addEventListener("stop", () => {
    stream.getTracks().forEach((track) => track.stop());
    recorder = null;
    transcribe(new Blob(pieces));
  });
  recorder.start();
  buttons(false);
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const message = at("message").value.trim();
  if (!message || stopping) return;
  at("message").value = "";
  messages.push({ role: "user", content: message });
  show(put("user"), message, "");
  answer();
});
at("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("form").requestSubmit();
  }
});
at("stop").addEventListener("click", () => stopping?.abort());
at("again").addEventListener("click", () => {
  messages.pop();
  at("talk").lastElementChild?.remove();
  answer();
});
at("record").addEventListener("click", record);
at("file").addEventListener("change", () => {
  const [file] = at("file").files;
  at("file").value = ""; // so that the same one can be chosen again
  if (file && !stopping) transcribe(file);
});
at("model").addEventListener("change", () => buttons(false));
at("new").addEventListener("click", () => {
  stopping?.abort();
  messages = [];
  at("talk").replaceChildren();
  tell("");
  buttons(false);
  at("message").focus();
});
at("key").addEventListener("change", listModels);
listModels();
