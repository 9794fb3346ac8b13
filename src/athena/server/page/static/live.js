// One connection for all tabs of a project: a browser opens only six to a server. The tab that gets the lock reads, and
// tells the others.
const MAX_RETRY_MS = 30_000;

export function followChanges(body, tell) {
  const address = body.dataset.live;
  if (!address || !("EventSource" in window)) return;
  const name = `athena-live ${body.dataset.project}`;
  const channel = "BroadcastChannel" in window ? new BroadcastChannel(name) : null;
  if (channel) channel.onmessage = (event) => tell(event.data);
  const read = () => readChanges(address, (change) => {
    channel?.postMessage(change);
    tell(change);
  });
  if (navigator.locks) navigator.locks.request(name, () => read());
  else read();
}

function readChanges(address, tell) {
  return new Promise(() => {
    let retryMs = 1_000;
    let last = "";
    const open = () => {
      const url = new URL(address, location.href);
      if (last) url.searchParams.set("after", last);
      const source = new EventSource(url);
      source.addEventListener("change", (event) => {
        retryMs = 1_000;
        last = event.lastEventId || last;
        tell(JSON.parse(event.data));
      });
      source.addEventListener("start", (event) => {
        last = event.lastEventId || last;
        retryMs = 1_000;
        if (JSON.parse(event.data).missed) tell({ changes: [], runs: [], count: 0 });
      });
      source.onerror = () => {
        source.close();
        setTimeout(open, retryMs);
        retryMs = Math.min(MAX_RETRY_MS, retryMs * 2);
      };
    };
    open();
  });
}
