// The application's part of the tests.

// connect connects Echo to the document lock at base, with more of its options.
globalThis.connect = (Echo, base, options) => {
  const { hostname, port } = new URL(base);
  globalThis.base = base;
  globalThis.events = [];
  globalThis.echo = new Echo({
    broadcaster: 'reverb', key: 'app-key', wsHost: hostname, wsPort: port, forceTLS: false, enabledTransports: ['ws'], ...options,
  });
};

// watch subscribes to a room, and returns how the subscription ended. Its events are in
// `events` from then on.
globalThis.watch = (kind, room) => new Promise((resolve) => {
  const channel = kind === 'private' ? echo.private(`documents.${room}`) : echo.channel(`documents.${room}`);
  for (const type of ['DocumentLocked', 'DocumentUnlocked']) {
    channel.listen(`.${type}`, (event) => events.push([type, event.room_id, event.reason, event.holder_name ?? '-'].join(' ')));
  }
  channel.subscribed(() => { events.push('subscribed'); resolve('subscribed'); });
  channel.error(({ status }) => { echo.leave(`documents.${room}`); resolve(`refused ${status ?? "by the application"}`); });
});

// lock makes a request about the room's lock, and returns the answer's status.
globalThis.lock = async (method, room) => {
  const headers = echo.options.bearerToken ? { Authorization: `Bearer ${echo.options.bearerToken}` } : {};
  const answer = await fetch(`${base}/api/documents/${encodeURIComponent(room)}/lock`, { method, headers, credentials: 'include' });
  return answer.status;
};

// withCookies authorizes private channels of another origin: pusher-js itself sends no
// cookies there.
globalThis.withCookies = (base) => ({
  customHandler: async ({ socketId, channelName }, callback) => {
    const body = new URLSearchParams({ socket_id: socketId, channel_name: channelName });
    const answer = await fetch(`${base}/broadcasting/auth`, { method: 'POST', body, credentials: 'include' });
    callback(answer.ok ? null : Object.assign(new Error('refused'), { status: answer.status }), answer.ok ? await answer.json() : null);
  },
});

// opened returns whether a page may open a socket at url.
globalThis.opened = (url) => new Promise((resolve) => {
  const socket = new WebSocket(url);
  socket.onopen = () => resolve('open');
  socket.onerror = () => resolve('refused');
});
