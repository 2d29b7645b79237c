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
