// Asks the service.  The browser keeps answers and asks again with their ETags by itself.

export class Problem extends Error {
  constructor(status, { kind, message, acts }) {
    super(message);
    Object.assign(this, { status, kind, acts });
  }
}

export const query = (params) => new URLSearchParams(
  Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== ""),
).toString();

export async function get(path, params = {}) {
  const tail = query(params);
  let answer;
  try {
    answer = await fetch(`api/v1/${path}${tail && `?${tail}`}`);
  } catch (error) {
    throw new Problem(0, { kind: "No answer", message: "The service does not answer.", acts: "whoever runs skerry serve" });
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok && body !== null) return body;
  throw new Problem(answer.status, body?.error ?? { kind: `HTTP ${answer.status}`, message: "An answer that is none." });
}

const RETRY_MS = 1000;
const PATIENCE = 60;

// Asks again while manifests are still being parsed: what was done meanwhile is kept.
export async function getSlowly(path, params, isCurrent) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await get(path, params);
    } catch (error) {
      if (error.kind !== "TooLong" || attempt >= PATIENCE || !isCurrent()) throw error;
    }
    await pause();
  }
}

// Shows an answer in many parts as they come; ends when it is whole, or grows no more.
export async function growing(path, params, isCurrent, show) {
  let left = Infinity;
  for (;;) {
    const answer = await get(path, params);
    if (!isCurrent()) return;
    await show(answer);
    if (answer.unread === 0 || answer.unread >= left) return;
    left = answer.unread;
    await pause();
  }
}

const pause = () => new Promise((resolve) => { setTimeout(resolve, RETRY_MS); });

export async function* lines(path, params, signal) {
  const answer = await fetch(`api/v1/${path}?${query(params)}`, { signal });
  if (!answer.ok) {
    const body = await answer.json().catch(() => null);
    throw new Problem(answer.status, body?.error ?? { kind: `HTTP ${answer.status}`, message: "" });
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) yield JSON.parse(part);
  }
}

export async function login(token) {
  const answer = await fetch("session", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }),
  });
  return answer.ok;
}
