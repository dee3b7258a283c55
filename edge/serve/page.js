// The page of `edge serve`: a chat with one of its models, over the address that other programs use, too.

const at = (id) => document.getElementById(id);
const NAMES = { user: "You", assistant: "Answer" };

let messages = [];
let stopping = null; // what ends the answer that is under way

function headers() {
  const key = at("key").value.trim();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
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
    const { data } = await response.json();
    at("model").replaceChildren(...data.map(({ id }) => new Option(id, id, false, id === chosen)));
    tell("");
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
  at("talk").append(article);
  return article;
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
  at("send").hidden = busy;
  at("stop").hidden = !busy;
  at("again").hidden = busy || messages.at(-1)?.role !== "assistant";
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
    const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: asked(), signal: stopping.signal });
    if (!response.ok) throw new Error(await refused(response));
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
  }
  article.removeAttribute("aria-busy");
  if (text || thoughts) {
    messages.push({ role: "assistant", content: text });
  } else {
    article.remove();
  }
  if (usage) {
    const seconds = (last - first) / 1000;
    const figures = document.createElement("p");
    figures.className = "figures";
    const speed = seconds > 0 ? `, ${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
    figures.textContent = `${usage.completion_tokens} tokens${speed}${finish === "length" ? "; cut at the limit" : ""}`;
    article.append(figures);
  }
  stopping = null;
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
